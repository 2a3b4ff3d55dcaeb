"""A page open in a browser, with everything that should not happen on it."""


class Visit:
    """A page that gathers its requests, console messages, errors and dialogs."""

    def __init__(self, browser, path, width=1280, scheme="light", script="", state=""):
        """Open a file; ``script`` runs before those of the page, ``state`` is what stands behind # in the address."""
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.add_init_script(script)
        self.path, self.width = path, width
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._refuse)
        self.page.goto(path.as_uri() + state)
        self.page.wait_for_selector("body[data-drawn]")

    def _refuse(self, dialog):
        self.complaints.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def choose(self, label, value):
        self.page.locator("#maps").get_by_label(label, exact=True).select_option(value)

    def layer(self, name):
        """Show one layer of a map, and return its canvas."""
        self.page.locator(f"#maps .segment [data-layer='{name}']").click()
        return self.page.locator(f"#maps canvas[data-layer='{name}']")

    def read(self):
        return self.page.inner_text("#maps .readout")

    def close(self):
        """Close the page after checking that nothing untoward happened on it."""
        assert [request.split("#")[0] for request in self.requests] == [self.path.as_uri()]
        assert self.complaints == []
        assert self.page.locator("#failure").is_hidden()
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.width
        self.page.close()
