"""The section `[notify]` of the configuration file."""

import pytest
from ebbtide_core.model.notice_rules import Moment, NoticeRule
from ebbtide_master.config.notify import Mail, NotifySettings, Tls
from ebbtide_master.config.table import ConfigError

SMTP = "[notify.smtp]\nhost = 'mail.corp'\nfrom = 'ebb@corp.org'\n"


@pytest.fixture
def read(read_file):
    return lambda text: read_file(text).notify


def test_without_the_section_nothing_is_sent(read):
    settings = read("")
    assert settings == NotifySettings()
    for target in ("https://example.org/", "http://localhost:8080/hook", "http://127.0.0.1/"):
        with pytest.raises(ValueError, match="allowed are no hosts"):
            settings.address(target)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "10.1.2.3", "hooks"])
def test_hosts_are_allowed_by_name_by_number_or_by_network(read, host):
    settings = read("[notify]\nallow = ['localhost', '10.0.0.0/8', 'hooks']")
    assert settings.address(f"http://{host}/x")
    for other in ("11.1.2.3", "169.254.169.254", "2130706433", "0x7f000001", "127.1"):
        with pytest.raises(ValueError, match="is not allowed"):
            settings.address(f"http://{other}/x")


def test_targets_users_and_the_mail_server(read):
    settings = read(
        """
        [notify]
        allow = ["hooks.corp.org"]
        [notify.smtp]
        host = "mail.corp"
        from = "ebb@corp.org"
        tls = "tls"
        user = "ebb"
        password_file = "/etc/ebb-mail"
        domains = ["Corp.org"]
        [notify.targets.team]
        webhook = "https://hooks.slack.com/services/T/B/x"
        [notify.targets.boss]
        mail = "boss@corp.org"
        [notify.users.ann]
        events = ["failed", "held"]
        target = "team"
        """
    )
    assert settings.mail == Mail(
        host="mail.corp", port=465, sender="ebb@corp.org", tls=Tls.TLS, user="ebb", password_file="/etc/ebb-mail",
        domains=frozenset({"corp.org"}),
    )  # fmt: skip
    assert settings.address("team") == "https://hooks.slack.com/services/T/B/x"
    assert settings.address("boss") == "mailto:boss@corp.org"
    assert settings.address("https://hooks.corp.org/x")
    assert settings.address("mailto:ann@corp.org")
    with pytest.raises(ValueError, match=r"mail to 'example.org' is not allowed: allowed are corp.org"):
        settings.address("mailto:ann@example.org")
    assert settings.users == {"ann": NoticeRule((Moment.FAILED, Moment.HELD), "team")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[notify]\nalow = []", "notify.alow: is not known here: there are allow, smtp, targets, users"),
        ("[notify]\nallow = [1]", "notify.allow: 1 is not a text"),
        ("[notify.smtp]\nhost = 'x'", "notify.smtp.from: is missing"),
        (f"{SMTP}tls = 'ssl'", "notify.smtp.tls: 'ssl' is none of none, starttls, tls"),
        ("[notify.targets.team]", "notify.targets.team.webhook: either this or mail is needed, and not both"),
        ("[notify.targets.team]\nwebhook = 'ftp://x'", "notify.targets.team.webhook: 'ftp' is neither mailto:ADDRESS"),
        ("[notify.targets.team]\nmail = 'a@b.c'", "notify.targets.team.mail: needs a mail server: [notify.smtp]"),
        ("[notify.users.ann]\ntarget = 'team'", "notify.users.ann.target: there is no target 'team'"),
        ("[notify.users.ann]\nevents = ['lost']", "notify.users.ann.events: 'lost' is none of started, suspended"),
    ],
)
def test_a_mistake_is_named(read, text, message):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).split("ebbtide.toml: ")[1].startswith(message)
