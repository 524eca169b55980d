"""Secrets of many kinds, made at random, each in a text in which it is found in practice."""

from __future__ import annotations

import random
import string
from base64 import b64encode
from collections.abc import Callable

Chance = random.Random
LETTERS = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
LOWER = string.ascii_lowercase + string.digits
HEX = "0123456789abcdef"
BASE64 = LETTERS + "+/"


def some(chance: Chance, count: int, letters: str = LETTERS) -> str:
    """Return random letters, at least one of them a digit."""
    return "".join((*chance.choices(letters, k=count - 1), "7"))


def password(chance: Chance) -> str:
    """Return a password as people choose them."""
    return chance.choice(("hunter", "Sommer", "correct", "tr0ub4dor")) + some(chance, 5) + chance.choice("!?#%.")


# A text with the secret in braces.
KINDS: dict[str, Callable[[Chance], tuple[str, str]]] = {}


def kind(name: str, text: str, secret: Callable[[Chance], str]) -> None:
    """Add a kind of secret; {} in the text is its place."""
    KINDS[name] = lambda chance: (text, secret(chance))


# --- tokens that are recognised by themselves

kind("aws key", "aws configure: {}", lambda c: "AKIA" + some(c, 16, UPPER))
kind("aws bedrock key", "AWS_BEARER {}", lambda c: "ABSK" + some(c, 120, BASE64))
kind("github", "git clone with {}", lambda c: f"gh{c.choice('pousr')}_{some(c, 36)}")
kind("github fine-grained", "token {}", lambda c: f"github_pat_{some(c, 22)}_{some(c, 59)}")
kind("gitlab", "use {} here", lambda c: f"glpat-{some(c, 20)}")
kind("bitbucket", "app key {}", lambda c: f"ATBB{some(c, 32)}")
kind("atlassian", "jira: {}", lambda c: f"ATATT3xFfGF0{some(c, 180)}")
kind("slack", "bot {}", lambda c: f"xoxb-{some(c, 12, string.digits)}-{some(c, 12, string.digits)}-{some(c, 24)}")
kind("slack session", "{} d=", lambda c: f"xoxc-{some(c, 12, string.digits)}-{some(c, 64, HEX)}")
kind(
    "discord webhook",
    "post {}",
    lambda c: f"https://discord.com/api/webhooks/{some(c, 18, string.digits)}/{some(c, 68)}",
)
kind("telegram", "bot {}", lambda c: f"{some(c, 10, string.digits)}:AA{some(c, 33)}")
kind("stripe", "pay {}", lambda c: f"sk_live_{some(c, 24)}")
kind("square", "pay {}", lambda c: f"sq0csp-{some(c, 43)}")
kind("braintree", "pay {}", lambda c: f"access_token$production${some(c, 16, LOWER)}${some(c, 32, HEX)}")
kind("anthropic", "key {}", lambda c: f"sk-ant-api03-{some(c, 93)}-AA")
kind("openai", "key {}", lambda c: f"sk-proj-{some(c, 74)}")
kind("openai old", "key {}", lambda c: f"sk-{some(c, 48)}")
kind("perplexity", "key {}", lambda c: f"pplx-{some(c, 48)}")
kind("groq", "key {}", lambda c: f"gsk_{some(c, 52)}")
kind("hugging face", "key {}", lambda c: f"hf_{some(c, 34)}")
kind("langsmith", "key {}", lambda c: f"lsv2_pt_{some(c, 32, HEX)}_{some(c, 10, HEX)}")
kind("tavily", "key {}", lambda c: f"tvly-dev-{some(c, 32)}")
kind("pinecone", "key {}", lambda c: f"pcsk_{some(c, 6)}_{some(c, 60)}")
kind("google", "maps {}", lambda c: f"AIza{some(c, 35)}")
kind("google oauth", "got {}", lambda c: f"ya29.{some(c, 60)}")
kind("google refresh", "got {}", lambda c: f"1//0{some(c, 60)}")
kind("azure client", "app {}", lambda c: f"{some(c, 3)}8Q~{some(c, 34)}")
kind("npm", "publish {}", lambda c: f"npm_{some(c, 36)}")
kind("pypi", "publish {}", lambda c: f"pypi-AgEIcHlwaS5vcmc{some(c, 80)}")
kind("rubygems", "publish {}", lambda c: f"rubygems_{some(c, 48, HEX)}")
kind("sendgrid", "mail {}", lambda c: f"SG.{some(c, 22)}.{some(c, 43)}")
kind("mailgun", "mail {}", lambda c: f"key-{some(c, 32, HEX)}")
kind("digitalocean", "droplet {}", lambda c: f"dop_v1_{some(c, 64, HEX)}")
kind("databricks", "spark {}", lambda c: f"dapi{some(c, 32, HEX)}")
kind("heroku", "dyno {}", lambda c: f"HRKU-AA{some(c, 58)}")
kind("netlify", "site {}", lambda c: f"nfp_{some(c, 36)}")
kind("supabase", "db {}", lambda c: f"sbp_{some(c, 40, HEX)}")
kind("planetscale", "db {}", lambda c: f"pscale_tkn_{some(c, 43)}")
kind("grafana", "panel {}", lambda c: f"glsa_{some(c, 32)}_{some(c, 8, HEX)}")
kind("sentry", "errors {}", lambda c: f"sntryu_{some(c, 64, HEX)}")
kind("new relic", "agent {}", lambda c: f"NRAK-{some(c, 27, UPPER)}")
kind("doppler", "env {}", lambda c: f"dp.pt.{some(c, 43)}")
kind("postman", "api {}", lambda c: f"PMAK-{some(c, 24, HEX)}-{some(c, 34, HEX)}")
kind("airtable", "base {}", lambda c: f"pat{some(c, 14)}.{some(c, 64, HEX)}")
kind("linear", "issue {}", lambda c: f"lin_api_{some(c, 40)}")
kind("shopify", "shop {}", lambda c: f"shpat_{some(c, 32, HEX)}")
kind("tailscale", "up {}", lambda c: f"tskey-auth-{some(c, 16)}-{some(c, 32)}")
kind("terraform", "plan {}", lambda c: f"{some(c, 14)}.atlasv1.{some(c, 67)}")
kind("docker token", "push {}", lambda c: f"dckr_pat_{some(c, 27)}")
kind("vault", "login {}", lambda c: f"hvs.{some(c, 28)}")
kind("1password", "op {}", lambda c: f"ops_eyJ{some(c, 100)}")
kind("age", "age {}", lambda c: f"AGE-SECRET-KEY-1{some(c, 58, UPPER)}")
kind("jwt", "jwt {}", lambda c: f"eyJ{some(c, 30)}.eyJ{some(c, 60)}.{some(c, 43)}")
kind("unix hash", "root:{}:19000:0:99999:7:::", lambda c: f"$6${some(c, 12)}${some(c, 86)}")
kind("bcrypt", "admin:{}", lambda c: f"$2b$12${some(c, 53)}")

# --- values that are recognised by their place

kind("private key", "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", lambda c: some(c, 64, BASE64))
kind(
    "escaped private key",
    '"-----BEGIN PRIVATE KEY-----\\n{}\\n-----END PRIVATE KEY-----\\n"',
    lambda c: some(c, 64, BASE64),
)
kind("escaped json key", r'"{{\"api_key\": \"{}\", \"a\": 1}}"', lambda c: some(c, 24))
kind("escaped json password", r"{{\"user\":\"me\",\"password\":\"{}\"}}", password)
kind("DB_PASS", "DB_PASS={}", password)
kind("PGPASSWORD", "PGPASSWORD={} psql -h db", password)
kind("MYSQL_PWD", "export MYSQL_PWD='{}'", password)
kind("mysql -p", "mysql -u root -p{} shop", lambda c: f"geheim{some(c, 6)}")
kind("--password", "mongo --username me --password {} shop", password)
kind("--token=", "deploy --token={} --force", lambda c: some(c, 30))
kind("curl -u", "curl -s -u me:{} https://example.org/x", password)
kind("curl --user", "curl --user 'me:{}' https://example.org", password)
kind("netrc", "machine example.org login me password {}", password)
kind("pgpass", "db.example.org:5432:shop:me:{}", password)
kind("aws session token", "aws_session_token = {}", lambda c: some(c, 180, BASE64))
kind("aws secret", "aws_secret_access_key = {}", lambda c: some(c, 40, BASE64))
kind("session id", "Set-Cookie: sessionid={}; HttpOnly; Path=/", lambda c: some(c, 32, LOWER))
kind("cookie", "curl -H 'Cookie: theme=dark; sid={}' https://example.org", lambda c: some(c, 40))
kind(
    "azure sas",
    "https://x.blob.core.windows.net/c/b?sv=2024-05-04&se=2027-01-01&sig={}&sp=r",
    lambda c: some(c, 42, LETTERS) + "%3D",
)
kind(
    "azure storage",
    "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={}==;EndpointSuffix=y",
    lambda c: some(c, 86, BASE64),
)
kind("presigned", "https://b.s3.amazonaws.com/k?X-Amz-Expires=9&X-Amz-Signature={}", lambda c: some(c, 64, HEX))
kind(
    "docker auth",
    '{{"auths": {{"registry.example.org": {{"auth": "{}"}}}}}}',
    lambda c: b64encode(f"me:{password(c)}".encode()).decode(),
)
kind("npmrc", "//registry.example.org/:_authToken={}", lambda c: some(c, 36))
kind("url", "postgres://app:{}@db:5432/x", password)
kind("url with slash", "redis://:ab/{}@cache.example.org:6379/0", lambda c: some(c, 12) + "/" + some(c, 6))
kind("url query", "GET https://example.org/v1/items?access_token={}&page=2", lambda c: some(c, 32))
kind("bearer", "Authorization: Bearer {}", lambda c: some(c, 24))
kind("basic", '"Authorization": "Basic {}"', lambda c: b64encode(f"me:{password(c)}".encode()).decode())
kind("x-api-key", "curl -H 'X-Api-Key: {}' https://example.org", lambda c: some(c, 32))
kind("connection string", "Server=db;Database=shop;User Id=me;Password={};Encrypt=true", password)
kind("yaml", "database:\n  password: {}\n  port: 5432", password)
kind("camel case", 'const clientSecret = "{}";', lambda c: some(c, 32))
kind("xml", "<server><password>{}</password></server>", password)
kind("wireguard", "[Interface]\nPrivateKey = {}=", lambda c: some(c, 43, BASE64))
kind("said", "the password is {} and it works", password)
