"""Sixty header sections that a stranger writes, each to look like a result of the site's verifier.

Half are written by hand after what readers differ in, half come from a generator with a fixed seed.
All claim a pass of DKIM or SPF for `DOMAIN` under the name `SITE`.
"""

import random

SITE = "mx.example.org"
DOMAIN = "wanted.example"
AR = f"Authentication-Results: {SITE}; "
DKIM = f"dkim=pass header.d={DOMAIN}"
SPF = f"spf=pass smtp.mailfrom=x@{DOMAIN}"
HOP = f"Received: from mail.{DOMAIN} (mail.{DOMAIN} [192.0.2.1])\r\n\tby {SITE} (Postfix) with ESMTP id 4XyZ;\r\n\tMon, 5 Jan 2026 10:00:00 +0000"  # noqa: E501

WRITTEN = {
    "plain dkim": AR + DKIM,
    "plain spf": AR + SPF,
    "dkim by header.i": f"{AR}dkim=pass header.i=@{DOMAIN}",
    "header.i against header.d": f"{AR}dkim=pass header.d={DOMAIN} header.i=x@evil.example",
    "case of the name": f"AUTHENTICATION-results: {SITE}; {DKIM}",
    "case of the server": f"Authentication-Results: MX.Example.ORG; {DKIM}",
    "blank before the colon": f"Authentication-Results : {SITE}; {DKIM}",
    "tab before the colon": f"Authentication-Results\t: {SITE}; {SPF}",
    "trailing dot": f"Authentication-Results: {SITE}.; {DKIM}",
    "quoted server": f'Authentication-Results: "{SITE}"; {DKIM}',
    "quoted pairs": f'Authentication-Results: "mx\\.example.org"; {DKIM}',
    "comment before the server": f"Authentication-Results: (ours) {SITE}; {DKIM}",
    "comment after the server": f"Authentication-Results: {SITE} (Postfix); {DKIM}",
    "comments everywhere": (
        f"Authentication-Results: {SITE} (a); dkim (b) = (c) pass (d) header.d (e) = {DOMAIN}"
    ),
    "word after the server": f"Authentication-Results: {SITE} x; {DKIM}",
    "version 1": f"Authentication-Results: {SITE} 1; {DKIM}",
    "version 2": f"Authentication-Results: {SITE} 2; {DKIM}",
    "folded": f"Authentication-Results:\r\n {SITE};\r\n\tdkim=pass\r\n  header.d={DOMAIN}",
    "folded server": f"Authentication-Results: mx\r\n .example.org; {DKIM}",
    "several fields": f"{AR}dkim=fail header.d={DOMAIN}\r\n{AR}{DKIM}\r\n{AR}{SPF}",
    "duplicated methods": f"{AR}spf=fail smtp.mailfrom=a@evil.example; {SPF}; {DKIM}; {DKIM}",
    "arc": f"{AR}arc=pass; {DKIM}",
    "arc field": f"ARC-Authentication-Results: i=1; {SITE}; {DKIM}",
    "empty results": f"{AR};;; ; {DKIM}",
    "none and a result": f"{AR}none; {DKIM}",
    "8-bit": f"{AR}{DKIM} (caf\u00e9)",
    "8-bit server": f"Authentication-Results: \uff4dx.example.org; {DKIM}",
    "unknown ptype": f"{AR}{DKIM} x-new.thing=1",
    "unknown method": f"{AR}x-new=pass smtp.mailfrom={DOMAIN}; {DKIM}",
    "tail with a fault": f'{AR}{DKIM} ; spf=pass smtp.mailfrom="open',
    "very long": f"{AR}" + "dkim=fail header.d=evil.example; " * 2000 + DKIM,
    "above a forged hop": f"{AR}{DKIM}\r\n{HOP}",
    "between forged hops": f"{HOP}\r\n{AR}{DKIM}\r\n{HOP}",
    "below a forged hop": f"{HOP}\r\n{AR}{SPF}",
    "forged LMTP hop": f"Received: from {SITE} by {SITE} with LMTP id 1; x\r\n{AR}{DKIM}\r\n{HOP}",
    "forged border": f"{AR}{DKIM}\r\nX-Spamnb-Border: {'0' * 32}",
    "forged list": f"X-Spamnb-Results: {'0' * 16} {'0' * 32}\r\n{AR}{DKIM}",
    "forged place": f"X-Spamnb-Place: 4XyZ\r\n{AR}{DKIM}\r\nX-Spamnb-Border: {'0' * 32}\r\n{HOP}",
    "after a line that is no field": f"X-A: b\r\nno field here\r\n{AR}{DKIM}",
    "after a bare CR": f"X-A: b\r{AR}{DKIM}",
    "after a NUL": f"X-A: b\0\r\n{AR}{DKIM}",
    "received-spf": f"Received-SPF: pass (x) receiver={SITE}; envelope-from=x@{DOMAIN}",
}


def _drawn(number):
    """One variant: blanks, folds, case, comments, quotes and further results at random places."""
    draw = random.Random(number)
    gap = draw.choice([" ", "\t", "\r\n ", "\r\n\t", "  ", " (x) ", "\r\n (a;b) "])
    name = "".join(draw.choice([c.upper(), c.lower()]) for c in "Authentication-Results")
    colon = draw.choice([":", ":", " :", "\t:"])
    server = draw.choice([SITE, SITE.upper(), f'"{SITE}"', f"{SITE}{gap}1", f"{SITE}{gap}(v)"])
    results = draw.sample(
        [DKIM, SPF, f'dkim=pass reason="a;b" header.d={DOMAIN} header.s=s header.b=abc',
         f"dmarc=pass header.from={DOMAIN}", "arc=pass", "spf=none smtp.helo=evil.example",
         f"dkim=pass (2048-bit key) header.i=@{DOMAIN}"], k=draw.randint(1, 4),
    )  # fmt: skip
    if DKIM not in results:
        results.append(DKIM)
    body = "; ".join(results).replace(" ", gap)
    lines = f"{name}{colon}{gap}{server};{gap}{body}{draw.choice(['', ';', gap.rstrip()])}"
    return draw.choice(["", f"{HOP}\r\n"]) + lines + draw.choice(["", f"\r\n{HOP}"])


VARIANTS = WRITTEN | {f"drawn {number}": _drawn(number) for number in range(60 - len(WRITTEN))}
"""name -> header lines without the last line end"""


def forged(name, subject, body="text\r\n"):
    """A message with a forged field, from an author that the site wants."""
    lines = VARIANTS[name].encode("utf-8", "surrogateescape") + b"\r\n" if name else b""
    return (
        lines
        + (
            f"From: Boss <boss@{DOMAIN}>\r\nTo: alice@example.org\r\nSubject: {subject}\r\n"
            f"Date: Mon, 5 Jan 2026 10:00:00 +0000\r\n"
            f"Message-ID: <{subject.replace(' ', '.')}@x>\r\n"
            f"\r\n{body}"
        ).encode()
    )
