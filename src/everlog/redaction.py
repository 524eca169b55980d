"""Redaction of secrets in text: tokens of known shapes, and values whose place says that they are secret.

Only what is hardly ever anything else is redacted, since a page full of holes is of no use. A token
is known by the prefix that its issuer gave it. Other values are known by their place: after a name
such as `api_key` or `DB_PASS`, an option such as `--password`, in a header, a URL, a cookie, a file
of passwords. What stands there and looks like the name of a variable, a type or a call stays. The
signature of a model's thinking, a hash or an id is no secret.
"""

from __future__ import annotations

import re
from typing import NamedTuple

COVER = "[redacted]"

_WORD = r"[A-Za-z0-9_\-]"
_TOKENS = (
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS
    r"ABSK[A-Za-z0-9+/]{100,}=*",
    r"gh[pousr]_[A-Za-z0-9]{36,255}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{50,255}",
    rf"gl(?:pat|rt|dt|cbt|ptt|ft|soat)-{_WORD}{{20,}}",  # GitLab
    r"ATBB[A-Za-z0-9]{32}",  # Bitbucket
    rf"AT[AC]TT3{_WORD}{{100,}}=*",  # Atlassian
    r"xox[abcdeoprs]-[A-Za-z0-9\-]{10,250}",  # Slack
    r"xapp-[0-9]-[A-Za-z0-9\-]{20,}",
    r"https://hooks\.slack\.com/services/[A-Za-z0-9/]{30,}",
    rf"https://discord(?:app)?\.com/api/webhooks/[0-9]{{8,}}/{_WORD}{{40,}}",
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,250}",  # Stripe
    r"whsec_[A-Za-z0-9]{24,}",
    rf"sq0(?:atp|csp)-{_WORD}{{22,43}}",  # Square
    r"access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}",  # Braintree
    rf"sk-ant-{_WORD}{{20,}}",  # Anthropic
    rf"sk-(?:proj|svcacct|admin|or-v1|lf)-{_WORD}{{20,}}",  # OpenAI, OpenRouter, Langfuse
    r"sk-[A-Za-z0-9]{32,}",
    r"pplx-[A-Za-z0-9]{40,}",  # Perplexity
    r"lsv2_[a-z]{2}_[0-9a-f]{32}_[0-9a-f]{10}",  # LangSmith
    rf"tvly-{_WORD}{{24,}}",  # Tavily
    r"pcsk_[A-Za-z0-9_]{40,}",  # Pinecone
    rf"AIza{_WORD}{{35}}",  # Google
    rf"ya29\.{_WORD}{{20,}}",
    rf"1//0{_WORD}{{40,}}",
    rf"GOCSPX-{_WORD}{{20,}}",
    r"npm_[A-Za-z0-9]{36}",
    rf"pypi-AgE{_WORD}{{50,}}",
    r"rubygems_[0-9a-f]{48}",
    r"hf_[A-Za-z0-9]{30,}",  # Hugging Face
    r"gsk_[A-Za-z0-9]{40,}",  # Groq
    r"xai-[A-Za-z0-9]{60,}",
    r"r8_[A-Za-z0-9]{30,}",  # Replicate
    rf"SG\.{_WORD}{{16,32}}\.{_WORD}{{30,60}}",  # SendGrid
    r"key-[0-9a-f]{32}",  # Mailgun
    r"do[opr]_v1_[0-9a-f]{64}",  # DigitalOcean
    r"dapi[0-9a-f]{32}",  # Databricks
    rf"HRKU-{_WORD}{{36,}}",  # Heroku
    r"nfp_[A-Za-z0-9]{36}",  # Netlify
    r"sbp_[0-9a-f]{40}",  # Supabase
    rf"sb_secret_{_WORD}{{20,}}",
    r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.\-]{32,}",  # PlanetScale
    r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}",  # Grafana
    r"sntry[us]_[A-Za-z0-9+/=_\-]{40,}",  # Sentry
    r"NRAK-[A-Z0-9]{27}",  # New Relic
    r"dp\.(?:pt|st|ct|sa)\.[A-Za-z0-9.]{40,}",  # Doppler
    r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",  # Postman
    r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",  # Airtable
    r"lin_api_[A-Za-z0-9]{32,}",  # Linear
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",  # Shopify
    r"ntn_[A-Za-z0-9]{40,}",  # Notion
    r"figd_[A-Za-z0-9_\-]{30,}",  # Figma
    r"tskey-[a-z]+-[A-Za-z0-9\-]{20,}",  # Tailscale
    r"dckr_pat_[A-Za-z0-9_\-]{20,}",  # Docker
    r"hv[sb]\.[A-Za-z0-9_\-]{24,}",  # Vault
    rf"ops_eyJ{_WORD}{{50,}}",  # 1Password
    r"AGE-SECRET-KEY-1[0-9A-Z]{58}",
    rf"eyJ{_WORD}{{8,}}\.eyJ{_WORD}{{8,}}\.{_WORD}{{10,}}",  # JSON web tokens
    rf"(?<![0-9A-Za-z])[0-9]{{8,10}}:AA{_WORD}{{33}}",  # Telegram
)
_TOKEN_HINTS = (
    "akia asia abia acca absk ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- glrt- gldt- glcbt- glptt- glft- glsoat- atbb"
    " atatt3 atctt3 xox xapp- hooks.slack /api/webhooks/ _live_ _test_ whsec_ sq0 access_token$ sk- pplx- lsv2_ tvly-"
    " pcsk_ aiza ya29. 1//0 gocspx- npm_ pypi-age rubygems_ hf_ gsk_ xai- r8_ sg. key- _v1_ dapi hrku- nfp_ sbp_"
    " sb_secret_ pscale_ glsa_ sntry nrak- dp. pmak- pat lin_api_ shp ntn_ figd_ tskey- dckr_pat_ hvs. hvb. ops_eyj"
    " age-secret-key- eyj :aa"
)
# What is rare in these is in their middle.
_INNER_TOKENS = (
    rf"[MNO][A-Za-z0-9]{{23,27}}\.{_WORD}{{6}}\.{_WORD}{{27,38}}",  # Discord
    r"[A-Za-z0-9_~.\-]{3}8Q~[A-Za-z0-9_~.\-]{31,34}",  # Azure
    rf"[A-Za-z0-9]{{14}}\.atlasv1\.{_WORD}{{60,70}}",  # Terraform
    r"\$(?:2[aby]\$[0-9]{2}\$[A-Za-z0-9./]{53}|(?:apr1|1|5|6|y)\$[^\s:$]{1,30}\$[A-Za-z0-9./$]{20,})",  # crypt(3)
)

# Between a name and its value. A quote may be escaped: JSON in JSON.
_ASSIGN = r"\\*[\"']?\s*(?:=>|:=|[:=])\s*\\*[\"']?"
_QUOTE = r"\\*[\"']?"
_VALUE = r"[^\s\"'`,;<>{}()\[\]$\\]"
_MIXED = r"(?=[^\s\"']{0,256}[0-9])(?=[^\s\"']{0,256}[A-Za-z])"  # a digit and a letter are to come
_NAMES = (
    r"(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|(?:access|auth|refresh|session|private)[_-]?token"
    r"|(?:client|token)[_-]?secret|(?:private|account|access|encryption|signing)[_-]?key"
    r"|passwd|password|passphrase)"
)
# What stands in the place of a secret in code and in documents: a word, a variable, a reference.
_PLAIN = re.compile(
    r"[A-Z]?[a-z]+(?:[._\-]?[A-Z]?[a-z]+)*|[A-Z_]+|\*+|x+|\.+|<.*|(?:process\.env|os\.environ|self|settings|config|args)\..*"
)


class _Rule(NamedTuple):
    """How secrets in one kind of place are found."""

    hints: tuple[str, ...]  # in small letters: one of them is in every text with such a secret
    pattern: re.Pattern[str]  # its group `value` is the secret; without that group, all of it
    may_be_plain: bool = False  # a word, or the name of a variable, is none


def _rule(hints: str, pattern: str, *, may_be_plain: bool = True) -> _Rule:
    return _Rule(tuple(hints.split()), re.compile(pattern, re.IGNORECASE | re.MULTILINE), may_be_plain)


_RULES = (
    _Rule(
        ("-----begin",),
        re.compile(r"-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END \1-----|\Z)", re.DOTALL),
    ),
    _Rule(tuple(_TOKEN_HINTS.split()), re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(_TOKENS)})(?![A-Za-z0-9_])")),
    _Rule(
        (".", "8q~", "$2", "$apr1$", "$1$", "$5$", "$6$", "$y$"),
        re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(_INNER_TOKENS)})(?![A-Za-z0-9_])"),
    ),
    # URLs: scheme://user:password@host, and parameters
    _rule(
        "://",
        r"\b[a-z][a-z0-9+.\-]{1,20}://[^\s/:@\"'<>]{0,64}:(?![0-9]{1,5}(?:/|$))(?P<value>[^\s@\"'<>]{3,256})@(?=[a-z0-9\[])",
        may_be_plain=False,
    ),
    _rule(
        "sig= signature= token= key=",
        r"[?&](?:sig|(?:x-(?:amz|goog)-)?signature|x-amz-security-token|(?:access_|auth_)?token|api_?key|key)"
        rf"={_MIXED}(?P<value>[^\s&#\"'<>]{{16,}})",
    ),
    # headers
    _rule(
        "authorization",
        rf"\b(?:proxy-)?authorization{_ASSIGN}(?:bearer|basic|token|apikey|ssws)\s+(?P<value>[a-z0-9+/=_\-.~]{{8,}})",
        may_be_plain=False,
    ),
    _rule("bearer", rf"\bbearer\s+{_MIXED}(?P<value>[a-z0-9+/=_\-.~]{{20,}})"),
    _rule(
        "cookie", rf"\b(?:set-)?cookie\\*[\"']?\s*:\s*{_QUOTE}(?P<value>[\w.\-]+=[^\n\"'\\]{{4,}})", may_be_plain=False
    ),
    _rule("sess", rf"sess(?:ion)?_?id={_MIXED}(?P<value>[^\s;&\"']{{16,}})"),
    # names of values, in any case and at the end of longer names
    _rule("key secret token passw passphrase", rf"{_NAMES}{_ASSIGN}(?P<value>{_VALUE}{{8,}})"),
    _rule("pass pwd", rf"(?<![a-z0-9])(?:pass|passcode|pwd|[a-z0-9]*password){_ASSIGN}(?!/)(?P<value>{_VALUE}{{6,}})"),
    _rule("token", rf"(?<![a-z0-9])(?:auth)?token{_ASSIGN}{_MIXED}(?P<value>{_VALUE}{{20,}})"),
    _rule("auth", r"\bauth\\*[\"']\s*:\s*\\*[\"'](?P<value>[a-z0-9+/]{12,}={0,2})\\*[\"']"),
    _rule("</", r"<(?:password|passwd|secret|api_?key|token)>(?P<value>[^<\s]{4,})</"),
    # options of commands
    _rule(
        "--pass --token --secret --api --auth",
        rf"(?<!\S)--(?:pass(?:word|wd|phrase)?|token|secret|api-?key|auth-token)(?:\s+|=){_QUOTE}(?P<value>{_VALUE}{{6,}})",
    ),
    _rule("mysql mariadb", r"\b(?:mysql|mariadb)[a-z-]*\s(?:[^\n|;&]{0,400}?\s)?-p(?P<value>[^\s\"'\-][^\s\"']{3,})"),
    _rule("sshpass", rf"\bsshpass\s+-p\s*{_QUOTE}(?P<value>[^\s\"']{{4,}})"),
    _rule(
        "curl",
        r"\bcurl\s(?:[^\n|;&]{0,400}?\s)?(?:-u|--user|--proxy-user)[\s=]*"
        rf"{_QUOTE}[^\s:\"']+:(?P<value>[^\s\"']{{3,}})",
    ),
    # files of passwords
    _rule("password", r"\b(?:login|user|machine)\s+\S+\s+password\s+(?P<value>\S{4,})"),
    _rule(":", r"^[^\s:#/]+:(?:[0-9]{4,5}|\*):(?![0-9]+:)[^\s:]+:[^\s:]+:(?P<value>\S{4,})$"),
    # prose
    _rule(
        "password passphrase passcode key token",
        rf"\b(?:password|passphrase|passcode|api key|secret key|access token)\s+is:?\s+{_QUOTE}{_MIXED}"
        rf"(?P<value>{_VALUE}{{8,}})",
    ),
)


def redact(text: str) -> tuple[str, int]:
    """Return a text without its secrets, and how many there were."""
    count = 0
    folded = text.lower()
    for rule in _RULES:
        if any(map(folded.__contains__, rule.hints)):
            text, covered = _cover(rule, text)
            count += covered
    return text, count


def _cover(rule: _Rule, text: str) -> tuple[str, int]:
    group = "value" if rule.pattern.groupindex else 0
    count = 0

    def cover(match: re.Match[str]) -> str:
        nonlocal count
        if match[group].startswith(COVER) or (rule.may_be_plain and _PLAIN.fullmatch(match[group])):
            return match[0]
        count += 1
        start, end = (position - match.start() for position in match.span(group))
        return f"{match[0][:start]}{COVER}{match[0][end:]}"

    return rule.pattern.sub(cover, text), count
