// The text of whatever lies under the pointer or the finger, as plain text.
const tip = document.getElementById("tip");
function show(event) {
  const owner = event.target.closest ? event.target.closest("[data-tip]") : null;
  tip.hidden = owner === null;
  if (owner === null) return;
  tip.textContent = owner.dataset.tip;
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  const right = document.documentElement.clientWidth;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, right - width - 4)) + "px";
  tip.style.top = Math.max(4, event.clientY - height - 14) + "px";
}
tip.hidden = true;
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
