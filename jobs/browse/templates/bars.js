// Lets one drag over the bars of messages over time, and opens the messages of all their time.
// Each bar is a link of its own, which a click or the keyboard follows, with or without this.
"use strict";
for (const bars of document.querySelectorAll("svg[data-step]:has(a)")) {
  const [start, step, slots] = ["start", "step", "slots"].map((name) => BigInt(bars.dataset[name]));
  const chosen = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  let press = null; // where the pointer went down, until it goes up
  let wasDragged = false;

  const slotAt = (x) => {
    const box = bars.getBoundingClientRect();
    return Math.min(Math.max(Math.floor(((x - box.left) / box.width) * Number(slots)), 0), Number(slots) - 1);
  };
  const range = (event) => [slotAt(press.clientX), slotAt(event.clientX)].sort((one, other) => one - other);
  const end = () => {
    press = null;
    chosen.remove();
  };

  chosen.setAttribute("class", "chosen");
  chosen.setAttribute("height", "100");
  bars.classList.add("to-drag");
  bars.parentElement.querySelector("[hidden]").hidden = false;
  bars.addEventListener("dragstart", (event) => event.preventDefault()); // of a link
  bars.addEventListener("pointerdown", (event) => {
    wasDragged = false;
    const isPlain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);
    press = event.isPrimary && event.button === 0 && isPlain ? event : null;
  });
  bars.addEventListener("pointermove", (event) => {
    if (!event.buttons) end(); // it went up elsewhere
    if (!press || (!chosen.isConnected && Math.abs(event.clientX - press.clientX) < 5)) return;
    // Captured only now: the click that follows a captured press would not reach the bar's link.
    bars.setPointerCapture(event.pointerId);
    wasDragged = true;
    const [low, high] = range(event);
    chosen.setAttribute("x", (1000 * low) / Number(slots));
    chosen.setAttribute("width", (1000 * (high - low + 1)) / Number(slots));
    bars.append(chosen);
  });
  bars.addEventListener("pointerup", (event) => {
    if (press && chosen.isConnected) {
      const [since, until] = range(event).map((slot, last) => start + BigInt(slot + last) * step - BigInt(last));
      const address = new URL(bars.querySelector("a").getAttribute("href"), location.href);
      address.searchParams.set("since", since < 0n ? 0n : since);
      address.searchParams.set("until", until < 0n ? 0n : until);
      location.assign(address);
    }
    end();
  });
  bars.addEventListener("pointercancel", end);
  document.addEventListener("keydown", (event) => event.key === "Escape" && end());
  // The click that ends a drag follows no link; one of the keyboard (detail 0) always does.
  bars.addEventListener("click", (event) => wasDragged && event.detail && event.preventDefault(), true);
}
