"""A server for CrabTalk's protocol on a Unix socket."""
