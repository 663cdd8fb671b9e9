"""Private previews: links that are signed, expire and can be revoked."""

from urllib.parse import urlsplit

import pytest

from server import wait_until
from test_proxy import Site, connect, start_app

OPTIONS = ("--preview-mode", "proxy", "--preview-domain", "localhost", "--reap-every", "1")
LINKS = "/v1/sandboxes/vault/previews/8000/links"


@pytest.fixture
def vault(client):
    client.create("vault")
    made = start_app(client, "vault", visibility="private")
    assert made["visibility"] == "private" and made["state"] == "ready"
    yield "vault"
    client.delete("vault", expect=(202, 204))


@pytest.fixture
def site(server, vault):
    return Site(server, vault)


def make_link(client, **body):
    return client.request("POST", LINKS, 201, json=body).json()


def target_of(url):
    parts = urlsplit(url)
    return parts.path + "?" + parts.query


def visit(site, url, **options):
    return site.get(target_of(url), None, **options)


def cookie_of(response):
    name, _, rest = response.headers["Set-Cookie"].partition("=")
    assert name == "podsandbox-preview"
    value, _, attributes = rest.partition(";")
    return value, {part.strip() for part in attributes.split(";")}


def ticket(site, client, **body):
    return cookie_of(visit(site, make_link(client, **body)["url"]))[0]


def test_without_a_link_nothing_is_seen(site):
    page = site.get("/echo", 403, headers={"Accept": "text/html"})
    assert "private" in page.text and "Set-Cookie" not in page.headers
    problem = site.get("/echo", 403).json()
    assert problem["code"] == "preview_private" and "/previews/{port}/links" in problem["remediation"], problem
    assert "/previews/{port}/links" in page.text and "key" not in page.text
    assert site.request("POST", "/echo", 403, data=b"x" * 100000).json()["code"] == "preview_private"
    answer = site.raw("GET /ws HTTP/1.1\nHost: {host}\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: eA==\n"
                      "Sec-WebSocket-Version: 13\nConnection: close\n\n")
    assert answer.startswith(b"HTTP/1.1 403 ")


def test_a_link_becomes_a_cookie(client, site):
    made = make_link(client, ttl=600)
    assert made["url"].startswith(f"http://{site.host}/?podsandbox-link=") and made["expires"]
    response = visit(site, made["url"])
    assert response.status_code == 303 and response.headers["Location"] == f"http://{site.host}/"
    assert response.headers["Referrer-Policy"] == "no-referrer" and response.headers["Cache-Control"] == "no-store"
    value, attributes = cookie_of(response)
    age = [part for part in attributes if part.startswith("Max-Age=")]
    assert attributes - set(age) == {"Path=/", "HttpOnly", "SameSite=Lax"} and 590 <= int(age[0][8:]) <= 600
    said = site.echo(headers={"Cookie": f"a=1; podsandbox-preview={value}; b=2"})
    assert said["fields"]["cookie"] == "a=1; b=2"  # the program never sees it
    assert value not in str(said) and made["url"].partition("=")[2] not in str(said)
    with connect(site, additional_headers={"Cookie": f"podsandbox-preview={value}"}) as websocket:
        assert value not in websocket.recv()


def test_a_link_leads_anywhere_below_the_host(client, site):
    made = make_link(client)
    link = urlsplit(made["url"]).query
    for target, clean in ((f"/a/b?x=1&{link}&y=2", "/a/b?x=1&y=2"), (f"//evil.example/?{link}", "//evil.example/"),
                          (f"/?{link}&", "/?"), (f"/%0D%0AX:1?{link}", "/%0D%0AX:1")):
        response = visit(site, f"http://x{target}")
        assert response.status_code == 303 and response.headers["Location"] == f"http://{site.host}{clean}"
    # with the cookie, an old ticket is taken out of the address all the same
    value = cookie_of(visit(site, made["url"]))[0]
    response = site.get("/a?podsandbox-link=1.2&b", 303, headers={"Cookie": f"podsandbox-preview={value}"})
    assert response.headers["Location"] == f"http://{site.host}/a?b" and "Set-Cookie" not in response.headers


@pytest.mark.parametrize("change", [
    lambda link: link[:-1] + ("0" if link[-1] != "0" else "1"), lambda link: link[:-1], lambda link: link + "0", lambda link: "9" + link,
    lambda link: "99999999999" + link[link.index("."):], lambda link: link.partition(".")[0], lambda link: "", lambda link: "." * 500,
    lambda link: "-1" + link[link.index("."):], lambda link: link.upper()])
def test_forged_tickets(client, site, change):
    link = urlsplit(make_link(client)["url"]).query.partition("=")[2]
    forged = change(link)
    site.get(f"/?podsandbox-link={forged}", 403)
    value = cookie_of(visit(site, f"http://x/?podsandbox-link={link}"))[0]
    site.get("/echo", 403, headers={"Cookie": f"podsandbox-preview={change(value)}"})
    site.get("/echo", 403, headers={"Cookie": f"podsandbox-preview={link}"})  # a link is no cookie
    site.get(f"/?podsandbox-link={value}", 403)  # nor the other way round


def test_tickets_of_another_preview(server, client, site):
    start_app(client, "vault", port=8001, visibility="private")
    value = ticket(site, client)
    Site(server, "8001-vault").get("/echo", 403, headers={"Cookie": f"podsandbox-preview={value}"})
    Site(server, "8001-vault").get(target_of(make_link(client)["url"]), 403)


def test_revoked(client, site):
    made, value = make_link(client), ticket(site, client)
    cookie = {"Cookie": f"podsandbox-preview={value}"}
    assert site.echo(headers=cookie)["method"] == "GET"
    client.request("DELETE", LINKS, 204)
    site.get("/echo", 403, headers=cookie)
    site.get(target_of(made["url"]), 403)
    fresh = {"Cookie": f"podsandbox-preview={ticket(site, client)}"}
    assert site.echo(headers=fresh)["method"] == "GET"


def test_expired(client, site):
    value = ticket(site, client, ttl=1)
    wait_until(lambda: site.get("/echo", None, headers={"Cookie": f"podsandbox-preview={value}"}).status_code == 403, what="the expiry")


def test_links_stay_over_a_restart_and_a_replacement(server, client, site):
    made, value = make_link(client), ticket(site, client)
    server.restart()
    client.wait_state("vault", "running")
    assert site.echo(headers={"Cookie": f"podsandbox-preview={value}"})["method"] == "GET"
    start_app(client, "vault", visibility="private")
    assert visit(site, made["url"]).status_code == 303
    client.request("DELETE", "/v1/sandboxes/vault/previews/8000", 204)
    start_app(client, "vault", visibility="private")
    site.get(target_of(made["url"]), 403)  # another preview


def test_a_new_life_of_the_id_has_other_links(client, site):
    value = ticket(site, client)
    client.delete("vault")
    client.create("vault")
    start_app(client, "vault", visibility="private")
    site.get("/echo", 403, headers={"Cookie": f"podsandbox-preview={value}"})


def test_of_a_sandbox_that_is_gone(server, client, site):
    """That it has ended is all that a stranger is told, also after a restart."""
    cookie = {"Cookie": f"podsandbox-preview={ticket(site, client)}"}
    site.get("/echo", 403)
    client.delete("vault")
    for _ in range(2):
        for headers in ({}, cookie):
            problem = site.get("/echo", 410, headers=headers).json()
            assert (problem["code"], problem["detail"]) == ("gone", "this preview has ended"), problem
        page = site.get("/echo", 410, headers={"Accept": "text/html"}).text
        assert "has ended" in page and "deleted" not in page, page
        server.restart()


def test_public_and_private_again(client, site):
    start_app(client, "vault", visibility="public")
    assert site.echo()["method"] == "GET"
    client.problem("POST", LINKS, 409, "conflict", json={})
    start_app(client, "vault", visibility="private")
    site.get("/echo", 403)


@pytest.mark.parametrize("body", [{"ttl": 0}, {"ttl": -1}, {"ttl": "1"}, {"ttl": 2592001}, {"other": 1}])
def test_bad_requests(client, vault, body):
    client.problem("POST", LINKS, 400, json=body)


def test_previews_that_are_not_there(client, vault):
    for method in ("POST", "DELETE"):
        client.problem(method, "/v1/sandboxes/vault/previews/9/links", 404)
        client.problem(method, "/v1/sandboxes/nobody/previews/8000/links", 404)


def test_the_cookie_is_secure_where_the_browser_speaks_https(fresh):
    one = fresh(*OPTIONS, "--preview-scheme", "https", "--preview-port", "443").start()
    client = one.client()
    client.create("vault")
    start_app(client, "vault", visibility="private")
    site = Site(one, "vault")
    url = make_link(client)["url"]
    assert url.startswith("https://vault.localhost/?")
    response = visit(site, url)
    assert "Secure" in cookie_of(response)[1]
    said = site.echo(headers={"Cookie": f"podsandbox-preview={cookie_of(response)[0]}"})
    assert said["fields"]["x-forwarded-proto"] == "https"
