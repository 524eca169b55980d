"""Texts without secrets that look a little like some: what agents, their tools and people write."""

from __future__ import annotations

import random
import string
from base64 import b64encode
from collections.abc import Iterator
from uuid import UUID

HEX = "0123456789abcdef"
LETTERS = string.ascii_letters + string.digits

WRITTEN = (
    "password: str",
    "password = os.environ['DB_PASSWORD']",
    "api_key=settings.api_key",
    "token_count = 123456789",
    "01M7HD3MM1HEGFMA0S3SX196NN",
    "task-force-of-the-year sk-learn risk-free",
    "https://example.org:8080/path@2",
    "http://localhost:3000/@vite/client",
    "the signature EqQBCkYIBxgCKkDx9vC0 stays",
    "def login(user: str, password: str) -> Session:",
    "if not password: raise ValueError('a password is needed')",
    "The password is required and must have at least 12 characters.",
    "Enter your password: ",
    "--password-stdin reads it from the standard input",
    "use --token or set the variable",
    "gh auth token | docker login ghcr.io -u me --password-stdin",
    "PWD=/home/me/projects/everlog",
    "OLDPWD=/srv/data/backups/2026",
    "export PASSWORD=$(cat /run/secrets/db)",
    "password = getpass.getpass('Password: ')",
    "secret = secrets.token_urlsafe(32)",
    "const apiKey = process.env.OPENAI_API_KEY;",
    'apiKey: "<your key here>"',
    "api_key: ${{ secrets.PYPI_TOKEN }}",
    "OPENAI_API_KEY=your-key-here",
    "password: changeme",
    "max_tokens=100000",
    '"max_tokens": 4096, "token_usage": {"input": 12345678}',
    "tokens: 128000 of 200000 (64 %)",
    "auth: required",
    '"auth": "oauth"',
    "authorization: see section 4.2 of the document",
    "cookie: a small biscuit",
    "Cookies are set by the server.",
    "curl -u me https://example.org asks for the rest",
    "curl -s https://example.org/items?page=2&key=name",
    "mysql -u root -p shop < dump.sql",
    "ssh -p 2222 me@example.org",
    "docker run -p 8080:80 nginx",
    "key: value",
    "private_key_path: ~/.ssh/id_ed25519",
    "-----BEGIN CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----",
    "the session id is shown by `everlog sessions list`",
    "sessionid=abc",
    "git@github.com:someone/everlog.git",
    "ssh://git@example.org:7999/team/project.git",
    "postgresql://app@db:5432/shop",
    "redis://localhost:6379/0",
    "postgresql:///shop?host=/tmp",
    "npm install left-pad@1.3.0",
    "pip install 'everlog[postgres]>=1.0'",
    "src/app.py:1200:error:E501",
    "pass",
    "passed=412 failed=0",
    "bypass: enabled",
    "compass = north",
    "He forgot the passphrase again.",
    "access token expired; run the login again",
    "refresh_token: Optional[str] = None",
    "client_secret=None",
    "SECRET_KEY = get_random_secret_key()",
    "secret_key_base: <%= ENV['SECRET_KEY_BASE'] %>",
    "x-api-key: ********",
    "Authorization: Bearer <token>",
    "bearer of good news since nineteen eighty",
    "machine learning login page password field",
    "<password/>",
    "vault kv get secret/data/app",
    "kubectl get secret db-credentials -o yaml",
    "AKIA is the prefix of a key of AWS",
    "an sk- prefix, a ghp_ prefix and an xoxb- prefix",
    "hf_transfer and npm_config_cache are settings",
    "key-value-store-with-a-very-long-name-of-parts",
    "eyJ begins a JSON object in base64",
    "commit 1//0 is not one",
    "2//0 1//0",
    "$2 and $6 are fields in awk: {print $2, $6}",
    "awk -F: '{print $1}' /etc/passwd",
    "root:x:0:0:root:/root:/bin/bash",
    "drwxr-xr-x 2 me me 4096 Nov 18 07:30 tests",
    "The total is 1,234,567.89 EUR",
    "ISBN 978-3-16-148410-0",
    "IBAN DE00 0000 0000 0000 0000 00",
    "+49 30 1234567",
    "password reset e-mail sent to me@example.org",
    "key = lambda row: row.seq",
    "sorted(rows, key=operator.itemgetter('created_at'))",
    "token = tokens[index]",
    "pass the salt; pass: a verb",
    "pwd && ls",
    "rotate the signing key every 90 days",
    "encryption_key_id: alias/aws/s3",
    "SharedAccessKeyName=RootManageSharedAccessKey",
    "se=2027-01-01&sp=r&sv=2024-05-04",
    "Private-Token: see the settings of your profile",
    "discord.com/api/webhooks is the address",
    "hooks.slack.com accepts JSON",
    "dp.pt. and hvs. are prefixes",
    "patent US1234567B2, pattern A.B",
)


def _hex(chance: random.Random, count: int) -> str:
    return "".join(chance.choices(HEX, k=count))


def _base64(chance: random.Random, count: int) -> str:
    return b64encode(chance.randbytes(count)).decode()


def clean_texts() -> Iterator[str]:
    """Yield 200 texts: those that are written here, and ids, hashes and data made at random."""
    yield from WRITTEN
    chance = random.Random(11)
    templates = (
        lambda: f"commit {_hex(chance, 40)}",
        lambda: f"sha256:{_hex(chance, 64)}",
        lambda: f"session {UUID(bytes=chance.randbytes(16), version=4)} was resumed",
        lambda: f'"integrity": "sha512-{_base64(chance, 64)}"',
        lambda: f'{{"signature": "{_base64(chance, 120)}"}}',
        lambda: f"data:image/png;base64,{_base64(chance, 200)}",
        lambda: f"index {_hex(chance, 7)}..{_hex(chance, 7)} 100644",
        lambda: f"toolu_{''.join(chance.choices(LETTERS, k=24))}",
        lambda: f"call_{''.join(chance.choices(LETTERS, k=24))} returned",
        lambda: f'etag: W/"{_hex(chance, 32)}"',
        lambda: f"trace_id={_hex(chance, 32)} span_id={_hex(chance, 16)}",
        lambda: f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{_base64(chance, 32)} me@example",
    )
    for number in range(200 - len(WRITTEN)):
        yield templates[number % len(templates)]()
