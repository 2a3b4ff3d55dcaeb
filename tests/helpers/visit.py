"""A report open in a browser, with everything that should not happen on it."""


class Visit:
    """A page that gathers its requests, console messages, errors and dialogs."""

    def __init__(self, browser, path, **options):
        self.page = browser.new_page(viewport={"width": 1280, "height": 1000}, **options)
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._refuse)
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.querySelectorAll('.main-svg').length > 0")

    def width_on_a_phone(self, width=400):
        """Make the window as small as a phone's and return how wide the page is then."""
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.wait_for_timeout(400)
        return self.page.evaluate("document.documentElement.scrollWidth")

    def _refuse(self, dialog):
        self.complaints.append(f"dialog {dialog.message}")
        dialog.dismiss()


def drawn(page, plot, part="z", trace=0):
    return page.evaluate(
        "([plot, part, trace]) => document.getElementById(plot).data[trace][part]", [plot, part, trace]
    )
