/** The messages of a room, and the part of them that is in the document: a list that is as fast with 10,000 messages as with ten. */

/** A line of the list. All of it becomes text, never HTML. */
export interface Line {
  /** The author. Empty for a notice. */
  who: string
  what: string
  at: Date
  look: "" | "mine" | "private" | "note" | "gap"
}

/** The lines of one room. Their number is bounded: the oldest are forgotten. */
export class History {
  lines: Line[] = []
  /** The number of the first line that is kept. */
  first = 0
  /** The heights of chunks as they were measured, by their numbers. */
  heights = new Map<number, number>()
  /** Where the view stands; -1 at the newest line. */
  scroll = -1

  add(line: Line): void {
    this.lines.push(line)
    if (this.lines.length < LINES_MAX + CHUNK) return
    this.lines.splice(0, CHUNK)
    this.heights.delete(this.first / CHUNK)
    this.first += CHUNK
  }
}

/** Draws the chunks of a history that are near the visible part. Spacers stand for the others. */
export class View {
  #history = new History()
  #isPlanned = false
  #drawn = new Map<number, HTMLLIElement[]>()
  #lastLength = 0
  #width = 0

  constructor(
    private view: HTMLElement,
    private above: HTMLElement,
    private list: HTMLElement,
    private below: HTMLElement,
    private newest: HTMLElement,
  ) {
    view.addEventListener("scroll", () => {
      const isAtEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 24
      this.#history.scroll = isAtEnd ? -1 : view.scrollTop
      this.plan()
    }, { passive: true })
    newest.addEventListener("click", () => {
      // An event of scrolling that is on its way must find the view at the end.
      view.scrollTop = view.scrollHeight
      this.#history.scroll = -1
      this.plan()
      // The button hides, and must not take the focus with it.
      view.focus()
    })
    new ResizeObserver(() => {
      if (view.clientWidth !== this.#width) this.#history.heights.clear()
      this.#width = view.clientWidth
      this.plan()
    }).observe(view)
  }

  show(history: History): void {
    this.#history = history
    this.#clear()
    this.plan()
  }

  /** Has it drawn before the next frame, once for all that changed. */
  plan(): void {
    if (this.#isPlanned) return
    this.#isPlanned = true
    requestAnimationFrame(() => {
      this.#isPlanned = false
      this.#draw()
    })
  }

  #clear(): void {
    this.#drawn.clear()
    this.list.replaceChildren()
    this.#lastLength = 0
  }

  #draw(): void {
    const { lines, first, heights } = this.#history
    const from = first / CHUNK
    const behind = from + Math.ceil(lines.length / CHUNK)
    const guess = this.#guess()
    const height = (chunk: number) => heights.get(chunk) ?? guess * Math.min(CHUNK, first + lines.length - chunk * CHUNK)
    const between = (start: number, end: number) => {
      let sum = 0
      for (let chunk = start; chunk < end; chunk++) sum += height(chunk)
      return sum
    }
    const screen = this.view.clientHeight
    const isAtEnd = this.#history.scroll < 0
    const visible = isAtEnd ? between(from, behind) - screen : this.#history.scroll
    // The chunks that are within a screen of the visible part, and the one that the visible part begins in.
    let [start, end, anchor, anchorTop] = [from, behind, from, 0]
    for (let chunk = from, top = 0; chunk < behind; chunk++) {
      if (top <= visible) [anchor, anchorTop] = [chunk, top]
      top += height(chunk)
      if (top < visible - screen) start = chunk + 1
      else if (!isAtEnd && top > visible + 2 * screen) end = Math.min(end, chunk + 1)
    }
    this.#render(start, end)
    this.#measure()
    this.above.style.height = `${between(from, start)}px`
    this.below.style.height = `${between(end, behind)}px`
    if (isAtEnd) this.view.scrollTop = this.view.scrollHeight
    else {
      // The visible lines stay where they are when the chunks above turn out longer or shorter.
      const moved = between(from, anchor) - anchorTop
      if (Math.abs(moved) > 1) this.view.scrollTop = this.#history.scroll += moved
    }
    this.newest.hidden = isAtEnd
  }

  /** Puts the chunks from `start` to before `end` into the document, and takes the others out. */
  #render(start: number, end: number): void {
    const { lines, first } = this.#history
    for (const [chunk, rows] of this.#drawn) {
      if (chunk >= start && chunk < end) continue
      for (const row of rows) row.remove()
      this.#drawn.delete(chunk)
    }
    const size = first + lines.length
    for (let chunk = start; chunk < end; chunk++) {
      let rows = this.#drawn.get(chunk)
      if (!rows) this.#drawn.set(chunk, (rows = []))
      const next = this.#after(chunk)
      const last = Math.min(CHUNK, size - chunk * CHUNK)
      const fresh = document.createDocumentFragment()
      for (let index = rows.length; index < last; index++) {
        const number = chunk * CHUNK + index
        const row = this.#row(lines[number - first]!)
        row.setAttribute("aria-posinset", String(number + 1))
        rows.push(row)
        fresh.append(row)
      }
      this.list.insertBefore(fresh, next)
    }
    if (this.#lastLength !== size) {
      this.#lastLength = size
      for (const rows of this.#drawn.values()) for (const row of rows) row.setAttribute("aria-setsize", String(size))
    }
  }

  /** The first row behind a chunk. */
  #after(chunk: number): HTMLLIElement | null {
    let next = Infinity
    for (const other of this.#drawn.keys()) if (other > chunk && other < next && this.#drawn.get(other)!.length > 0) next = other
    return this.#drawn.get(next)?.[0] ?? null
  }

  #row(line: Line): HTMLLIElement {
    const row = document.createElement("li")
    row.className = line.look
    const time = document.createElement("time")
    time.dateTime = line.at.toISOString()
    time.textContent = clock.format(line.at)
    const what = element("span", "what", line.what)
    if (line.who) row.append(element("span", "who", line.who), time, what)
    else row.append(what, time)
    return row
  }

  #measure(): void {
    for (const [chunk, rows] of this.#drawn) {
      const [one, other] = [rows[0], rows[rows.length - 1]]
      if (one && other) this.#history.heights.set(chunk, other.offsetTop + other.offsetHeight - one.offsetTop)
    }
  }

  /** The height of a line that was never drawn: the mean of those that were. */
  #guess(): number {
    let [height, count] = [0, 0]
    for (const [chunk, rows] of this.#drawn) {
      height += this.#history.heights.get(chunk) ?? 0
      count += rows.length
    }
    return count > 0 ? height / count : 52
  }
}

export function element(tag: string, look: string, text: string): HTMLElement {
  const made = document.createElement(tag)
  made.className = look
  made.textContent = text
  return made
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" })

/** Lines that enter and leave the document together. */
const CHUNK = 40

/** Lines that a room keeps. */
const LINES_MAX = 20_000
