"""The cable: what is there, what it joins, and whether it carries."""
