"""What a person or a program reaches over HTTP: the control API and the endpoint."""
