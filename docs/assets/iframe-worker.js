// Browsers start no Web Worker from file://. The site's search needs one, so run its script in a hidden frame instead:
// search then works in a copy of the site that is opened from a folder. Loaded before the theme; does nothing over HTTP.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => frame.addEventListener("load", () => resolve(frame.contentWindow), { once: true }));
      window.__deliver = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.srcdoc = `<script>self.postMessage = (data) => parent.__deliver(data)<\/script><script src="${new URL(url, location.href)}"><\/script>`;
      document.body.append(frame);
    }

    async postMessage(data) {
      (await this.ready).dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
