// Checks what a user sees of a page: its width, its colours, and the names of its controls. The dashboard's tests use it, too.
import assert from "node:assert/strict"

/** Runs in the page: the texts with less contrast than WCAG AA asks for, the number of texts, and the brightness of the background. */
const look = () => {
  const parse = (color) => color.match(/[\d.]+/g).map(Number)
  const mix = ([r, g, b, a = 1], under) => [r, g, b].map((it, index) => it * a + under[index] * (1 - a))
  const behind = (element) => mix(parse(getComputedStyle(element).backgroundColor), element.parentElement ? behind(element.parentElement) : [255, 255, 255])
  const linear = (it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4)
  const brightness = (rgb) => rgb.map((it, index) => linear(it / 255) * [0.2126, 0.7152, 0.0722][index]).reduce((sum, it) => sum + it)
  const texts = []
  const add = (element, text, style) => {
    // A control that is disabled may be faint.
    if (!text.trim() || !element.checkVisibility({ visibilityProperty: true }) || element.closest(":disabled")) return
    const back = behind(element)
    const [dark, bright] = [brightness(back), brightness(mix(parse(style.color), back))].sort((one, other) => one - other)
    texts.push({ text: text.trim().slice(0, 40), contrast: (bright + 0.05) / (dark + 0.05) })
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) add(walker.currentNode.parentElement, walker.currentNode.data, getComputedStyle(walker.currentNode.parentElement))
  for (const input of document.querySelectorAll("input")) add(input, input.value || input.placeholder, getComputedStyle(input, input.value ? undefined : "::placeholder"))
  return {
    overflow: document.documentElement.scrollWidth - innerWidth,
    brightness: brightness(behind(document.body)),
    faint: texts.filter(({ contrast }) => contrast < 4.5),
    count: texts.length,
  }
}

/** Nothing is wider than the screen, the background has the brightness of this colour scheme, and all texts can be read. */
export async function assertReadable(page, colorScheme) {
  const { overflow, brightness, faint, count } = await page.evaluate(look)
  assert.ok(overflow <= 0, `${overflow} pixels are beyond the screen`)
  assert.ok(colorScheme === "dark" ? brightness < 0.05 : brightness > 0.8, `the ${colorScheme} background has a brightness of ${brightness}`)
  assert.ok(count > 3, `${count} texts`)
  assert.deepEqual(faint, [])
}

/** Every visible control has a name that a screen reader says. */
export async function assertNamed(page) {
  const controls = "button, input, [tabindex='0']"
  const unnamed = await page.evaluate((controls) => {
    const isNamed = (it) => it.textContent.trim() || it.ariaLabel || it.labels?.length || it.getAttribute("aria-labelledby")
    return [...document.querySelectorAll(controls)].filter((it) => it.checkVisibility() && !isNamed(it)).map((it) => it.id)
  }, controls)
  assert.deepEqual(unnamed, [])
}
