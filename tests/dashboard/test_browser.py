"""The dashboard as people see it: a real cluster with fake GPUs, and Chromium."""

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import a_home

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

JOB = Path(__file__).with_name("steps.py")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WAIT_MS = 20_000
FOCUSED = """() => {
    const one = document.activeElement, roles = { A: "link", BUTTON: "button" };
    const name = one.getAttribute("aria-label") || one.textContent;
    return `${roles[one.tagName] || one.tagName}: ${name.trim()}`;
}"""
NOTE_WHEN_CANCELLED = """(name) => {
    const root = document.documentElement, rows = [...document.querySelectorAll("tbody tr")];
    const row = rows.find((one) => one.textContent.includes(name));
    const over = () => !row.isConnected || row.textContent.includes("Cancelled");
    const look = () => { if (over()) root.dataset.at ||= Date.now(); };
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
}"""
SIZES = ((1440, 900), (1024, 768), (390, 844))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of one node with two fake GPUs, and a dashboard."""
    with a_home() as cluster:
        cluster.up("2xA100-40GB", "--dashboard")
        yield cluster


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(cluster, browser):
    """A page that is logged in; whatever the browser complains about is a failure."""
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    page, complaints = context.new_page(), []
    page.complaints = complaints
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    log_in(cluster, page)
    yield page
    assert complaints == []
    context.close()
    cluster.cancel_all()


def log_in(cluster, page) -> None:
    page.goto(cluster.facts("dashboard", "--link")["url"])
    page.wait_for_selector("#tiles .tile")


def at(cluster, path: str) -> str:
    record = json.loads((cluster.home / "dashboard.json").read_text())
    return f"{record['url']}{path}"


def submit(cluster, *options: str, steps: int = 100_000, pace: float = 0.05, name: str = "train") -> str:
    command = ("--", sys.executable, str(JOB), str(steps), str(pace))
    return cluster.submit("--name", name, *options, *command)


def press_until(page, role: str, name: str) -> None:
    """Press Tab until the focus is on what has this role and name."""
    wanted = f"{role}: {name}"
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        if re.fullmatch(wanted, found):
            return
        seen.append(found)
    raise AssertionError(f"Tab does not lead to {wanted}: {seen}")


def test_with_the_keyboard_alone_one_sees_why_a_job_waits_and_suspends_and_resumes_another(cluster, page):
    first = submit(cluster, "--gpus", "2", "--time", "1h", name="first")
    cluster.wait_for_step(first, 5)
    waiting = submit(cluster, "--gpus", "2", name="second")
    press_until(page, "link", "Queue")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"text={waiting} second")
    press_until(page, "link", f"{waiting} second")
    page.keyboard.press("Enter")
    page.wait_for_selector("#why .big")
    why = page.inner_text("#why")
    assert "waiting for 2 GPUs" in why
    assert re.search(r"May start\s+in about .*, (by progress|at the latest)", why)
    assert f"job {first}" in why
    press_until(page, "link", f"job {first}")
    page.keyboard.press("Enter")
    page.wait_for_selector(".state .glyph >> xpath=.. >> text=Running")
    page.wait_for_selector("[role=log] :text('step')")
    press_until(page, "button", "Suspend")
    began = time.monotonic()
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Suspended", timeout=WAIT_MS)
    assert time.monotonic() - began < 15
    assert cluster.show(first)["state"] == "SUSPENDED"
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == "Resume", "the focus stays where the next thing to do is"
    cluster.ebb("cancel", "--now", waiting)
    page.keyboard.press("Enter")
    page.wait_for_selector(".state-line .state >> text=Running")
    table = page.get_by_role("table", name="Parts of this suspension")
    table.wait_for()
    parts = set(table.get_by_role("columnheader").all_inner_texts())
    assert {"save", "exit", "free the GPU", "queue", "start"} <= parts
    lines = page.get_by_role("log")
    before = lines.locator(".ln").count()
    wait_for("the log goes on", lambda: lines.locator(".ln").count() > before)
    assert "attempt 2" in lines.inner_text()


def test_what_cannot_be_undone_asks_first_and_says_what_follows(cluster, page):
    job = submit(cluster, "--gpus", "1")
    cluster.wait_for_step(job, 2)
    page.goto(at(cluster, f"/jobs/{job}"))
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    assert "this cannot be undone" in dialog.inner_text()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert cluster.show(job)["state"] == "RUNNING"
    page.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel").click()
    page.wait_for_selector(".state-line .state >> text=Cancelled")
    assert cluster.show(job)["state"] == "CANCELLED"
    page.get_by_role("button", name="Requeue").click()
    dialog.get_by_role("button", name="Requeue").click()
    page.wait_for_url(re.compile(rf"/jobs/(?!{job}\b)\d+$"))


def test_a_job_is_resized_drilled_held_and_released(cluster, page):
    job = submit(cluster, "--gpus", "1")
    cluster.wait_for_step(job, 2)
    page.goto(at(cluster, f"/jobs/{job}"))
    page.get_by_role("button", name="Drill").click()
    page.wait_for_selector("text=Suspension 1")
    page.wait_for_selector(".parts-table >> text=first step")  # until it is back, its buttons change with its state
    page.wait_for_selector(".state-line .state >> text=Running")
    page.get_by_role("button", name="Resize").click()
    page.get_by_label("GPUs").fill("many")
    page.get_by_role("dialog").get_by_role("button", name="Resize").click()
    assert "no number" in page.get_by_role("dialog").inner_text()
    page.get_by_label("GPUs").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Resize").click()
    wait_for("it has two GPUs", lambda: cluster.show(job)["gpus"]["allocated"] == 2)
    other = submit(cluster, "--gpus", "1", name="other")
    page.goto(at(cluster, f"/jobs/{other}"))
    page.get_by_role("button", name="Hold").click()
    page.get_by_role("button", name="Release").click()
    page.get_by_role("button", name="Hold").wait_for()
    assert cluster.show(other)["held_by"] is None


def test_several_jobs_are_held_and_cancelled_at_once(cluster, page):
    jobs = [submit(cluster, "--gpus", "2", name=f"many-{n}") for n in range(3)]
    page.goto(at(cluster, "/queue?q=many"))
    page.wait_for_selector(f"text={jobs[2]} many-2")
    page.get_by_label("Choose all rows").check()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.wait_for_selector("text=No job is like that.")
    states = {cluster.wait_for_state(job, "CANCELLED")["state"] for job in jobs}
    assert states == {"CANCELLED"}
    page.get_by_role("link", name=re.compile("Finished")).click()
    page.wait_for_selector(f"text={jobs[0]} many-0")
    assert "show=finished" in page.url
    assert "q=many" in page.url


def test_a_change_of_state_is_on_the_screen_within_a_second_without_a_reload(cluster, page):
    page.goto(at(cluster, "/queue"))
    page.evaluate("window.same = true")
    seen = []
    for n in range(8):
        job = submit(cluster, "--cpu-only", "--hold", name=f"quick-{n}")
        page.wait_for_selector(f"text={job} quick-{n}")
        page.evaluate(NOTE_WHEN_CANCELLED, f"quick-{n}")
        cluster.ebb("cancel", job)
        page.wait_for_selector("html[data-at]")
        told = cluster.show(job)["end_time"]
        seen.append(int(page.get_attribute("html", "data-at")) / 1000 - told)
        page.evaluate("delete document.documentElement.dataset.at")
    assert page.evaluate("window.same")
    assert sorted(seen)[-2] < 1.0, seen


def test_when_the_master_is_killed_the_page_says_so_keeps_the_old_and_goes_on(cluster, page):
    job = submit(cluster, "--gpus", "1", name="stays")
    cluster.wait_for_step(job, 2)
    page.goto(at(cluster, f"/jobs/{job}"))
    page.wait_for_selector(".state-line .state >> text=Running")
    other = page.context.new_page()
    other.goto(at(cluster, "/"))
    other.wait_for_selector("text=stays")
    cluster.kill(cluster.daemon("master"))
    for one in (page, other):
        one.wait_for_selector("#banner:has-text('has not answered since')")
        assert "stays" in one.inner_text("main")
    assert page.get_by_role("button", name="Suspend").is_disabled()
    cluster.ebb("up")
    for one in (page, other):
        one.wait_for_selector("#banner", state="hidden", timeout=60_000)
    page.wait_for_selector(".state-line .state >> text=Running")
    assert page.get_by_role("button", name="Suspend").is_enabled()
    other.close()


def test_text_of_others_is_only_text_in_every_page(cluster, page):
    names = [
        "<script>document.title='owned'</script>", "<img src=x onerror=\"document.title='owned'\">",
        "\"><svg onload=alert(1)>", "'; alert(1); '", "{{constructor.constructor('alert(1)')()}}", "a\u202egpj.exe",
    ]  # fmt: skip
    jobs = [submit(cluster, "--cpu-only", f"--env=TEXT={name}", name=name, steps=3) for name in names]
    for job in jobs:
        cluster.wait_for_state(job, "COMPLETED")
    running = submit(cluster, "--gpus", "2", "--env=TEXT=<b>bold</b>", name=names[1])
    cluster.wait_for_step(running, 2)
    waiting = submit(cluster, "--gpus", "2", name=names[0])
    for path in ("/", "/queue", "/queue?show=finished", f"/jobs/{running}", f"/jobs/{waiting}", f"/jobs/{jobs[0]}"):
        page.goto(at(cluster, path))
        page.wait_for_selector(":text('script'), :text('onerror')")
        assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
        assert "owned" not in page.evaluate("document.title").replace(names[0], "").replace(names[1], "")
    page.goto(at(cluster, f"/jobs/{jobs[0]}"))
    page.wait_for_selector("[role=log] :text('<script>')")
    page.goto(at(cluster, f"/queue?q={names[0]}&user={names[1]}"))
    page.wait_for_selector("text=No job is like that.")


def test_a_session_that_is_over_leads_to_the_page_where_one_logs_in(cluster, page):
    (made,) = [token for token in cluster.facts("token", "ls") if token["label"] == "dashboard"][-1:]
    cluster.ebb("token", "revoke", made["id"])
    page.wait_for_url(re.compile("/login$"))
    assert page.inner_text("#problem") == "Your session is over: its token does not hold any more."
    page.complaints.clear()  # the browser tells that its streams were refused


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_everything_fits_at_every_width(cluster, page, theme):
    from axe_playwright_python.sync_playwright import Axe

    first = submit(cluster, "--gpus", "1", name="a-name-that-is-rather-long-for-a-narrow-column-of-a-table")
    cluster.wait_for_step(first, 2)
    cluster.ebb("drill", first)
    waiting = submit(cluster, "--gpus", "2", name="waits")
    context = page.context
    plain = context.browser.new_context(bypass_csp=True, reduced_motion="reduce", color_scheme=theme)
    plain.add_cookies(context.cookies())
    one, problems = plain.new_page(), []
    pages = {
        "/": "article.card", "/queue": "tbody tr", f"/jobs/{first}": ".parts-table",
        f"/jobs/{waiting}": "#why .big", "/jobs/98765": ".empty",
    }  # fmt: skip
    for path, ready in pages.items():
        one.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})
        one.goto(at(cluster, path))
        one.wait_for_selector(ready)
        found = Axe().run(one).response["violations"]
        problems += [
            f"{path}: {each['id']}: {each['nodes'][0]['target']} {each['nodes'][0]['html'][:120]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        for width, height in SIZES:
            one.set_viewport_size({"width": width, "height": height})
            one.wait_for_selector(ready)
            wide = one.evaluate("document.documentElement.scrollWidth - innerWidth")
            problems += [f"{path} at {width}: {wide} pixels too wide"] if wide > 0 else []
    plain.close()
    assert "\n".join(problems) == ""


def test_on_a_telephone_everything_can_be_reached(cluster, page):
    job = submit(cluster, "--gpus", "1", name="small")
    cluster.wait_for_step(job, 2)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(at(cluster, "/"))
    page.get_by_role("link", name="Queue").click()
    page.wait_for_selector("text=small")
    page.get_by_role("link", name=f"{job} small").click()
    page.get_by_role("button", name="Suspend").click()
    page.wait_for_selector(".state-line .state >> text=Suspended")
    page.locator("details.who summary").click()
    assert page.get_by_role("button", name="Log out").is_visible()


def test_an_empty_cluster_says_what_fills_it(cluster, page):
    page.goto(at(cluster, "/queue"))
    page.wait_for_selector("text=ebb submit --gpus 1 -- python train.py")
    page.goto(at(cluster, "/"))
    page.wait_for_selector("text=No job waits.")
