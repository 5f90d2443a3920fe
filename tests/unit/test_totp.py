"""One-time codes: the values of the RFC, the window, and the line of the password file."""

from base64 import b32encode

import pytest

from spamnb.errors import SettingsError
from spamnb.operations.logins import (
    SECRET,
    STEP_S,
    Cost,
    FailedCodes,
    Login,
    code_at,
    hashed,
    new_secret,
    read_logins,
    step_of,
    uri_of,
    write_logins,
)

RFC = b32encode(b"12345678901234567890").decode()
"""the secret of RFC 6238, appendix B; its codes have eight digits, of which six count here"""


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (59, "94287082"), (1111111109, "07081804"), (1111111111, "14050471"),
        (1234567890, "89005924"), (2000000000, "69279037"), (20000000000, "65353130"),
    ],
)  # fmt: skip
def test_codes_are_those_of_the_rfc(now, code):
    """RFC 6238, appendix B, for SHA-1."""
    assert code_at(RFC, now // STEP_S) == code[2:]
    assert step_of(RFC, code[2:], now) == now // STEP_S


def test_the_window_is_one_step():
    """The code of the step before and of the step after is right, and no other."""
    now = 40_000 * STEP_S
    found = [step_of(RFC, code_at(RFC, 40_000 + away), now) for away in range(-3, 4)]
    assert found == [None, None, 39_999, 40_000, 40_001, None, None]
    for wrong in ("", "12345", "1234567", "abcdef", "١٢٣٤٥٦", "------"):
        assert step_of(RFC, wrong, now) is None


def test_a_secret_is_for_apps():
    """160 bits in base32, in an address of the form that apps read."""
    secret = new_secret()
    assert SECRET.fullmatch(secret)
    assert secret != new_secret()
    assert uri_of("a b@x.example", secret) == (
        f"otpauth://totp/spamnb%3Aa%20b%40x.example?secret={secret}&issuer=spamnb"
    )


def test_the_fourth_field_is_the_secret(tmp_path):
    """Lines without it stay as they are; another text there is an error."""
    path, secret = tmp_path / "p", hashed("x", Cost(ln=4))
    logins = {"a": Login("a", secret, ("a@x.example",), RFC), "b": Login("b", secret, ("b",))}
    write_logins(path, logins)
    assert read_logins(path) == logins
    assert path.read_text().splitlines() == [f"a:{secret}:a@x.example:{RFC}", f"b:{secret}:b"]
    path.write_text(f"a:{secret}:a@x.example:{RFC.lower()}\n")
    with pytest.raises(SettingsError):
        read_logins(path)


def test_few_codes_are_checked_in_a_day():
    """After three wrong ones the pauses double to a quarter of an hour."""
    failed, now, checked = FailedCodes(), 0.0, 0
    while now < 86_400:
        now += failed.wait_s("root", now)
        failed.wrong("root", now)
        checked += 1
    assert checked < 120
