"""The daemon of a root: the HTTP API, the event stream, the web page and CrabTalk's socket."""
