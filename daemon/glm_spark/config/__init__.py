"""config.toml as one frozen Config."""
