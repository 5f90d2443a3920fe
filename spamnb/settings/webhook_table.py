"""Table of the settings of webhooks. `table` appends it to the others."""

from __future__ import annotations

from spamnb.endpoints.console.webhooks.params import EVENTS
from spamnb.settings.setting import NamedSections, Setting
from spamnb.settings.types import TEXT, TEXTS, some_of

WEBHOOKS = NamedSections(
    "webhook",
    "chat",
    "Addresses that get events of the daemon by HTTP, signed (Standard Webhooks). They need the "
    "console. See docs/webhooks.md.",
    (
        Setting("webhook.*.url", TEXT,
            "The receiver: https://HOST/PATH. Its certificate must be valid for the host. With "
            "http:// all hosts on the way can read the events. The URL is not shown, because the "
            "URL of many receivers is also the password.", secret=True),
        Setting("webhook.*.secret_file", TEXT,
            "File with the secret in its first line, whsec_ and the base64 form of 24 to 64 random "
            "bytes; only its owner may have access (mode 0600)."),
        Setting("webhook.*.secret_command", TEXTS,
            "Program that prints the secret, as a list of words. It is run for each attempt, "
            "without a shell."),
        Setting("webhook.*.ca_file", TEXT,
            "PEM file of the authorities that the certificate is checked with. Empty: those of the "
            "system."),
        Setting("webhook.*.events", some_of(*EVENTS),
            "Events that the receiver gets. A verdict.reject is sent for each message with the "
            "decision reject."),
    ),
)  # fmt: skip
