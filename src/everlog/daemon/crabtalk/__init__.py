"""The Unix socket that speaks CrabTalk's protocol."""
