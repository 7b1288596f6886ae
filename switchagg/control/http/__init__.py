"""The controller over HTTP: the service, what it lets whom do, and the web page."""
