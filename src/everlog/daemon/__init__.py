"""The daemon of a home: the HTTP API, the event stream, the web page and CrabTalk's socket."""
