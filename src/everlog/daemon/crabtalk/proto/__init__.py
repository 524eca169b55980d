"""CrabTalk's messages, generated from `crabtalk.proto`."""
