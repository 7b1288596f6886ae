"""The controller over HTTP: `server` listens, `app` has the calls, `streams` keeps members' connections."""
