/** The messages of a room. Only those near the visible part are in the document, so 10,000 messages are as fast as ten. */

/** A line of the list. All of it becomes text, never HTML. */
export interface Line {
  /** The author. Empty for a notice. */
  who: string
  what: string
  at: Date
  look: "" | "mine" | "private" | "note" | "gap"
}

/** A position in a history, in pixels below the top of a chunk. It stays right when the heights of chunks above it change. */
interface Spot {
  chunk: number
  into: number
}

/** The lines of one room. Their number is bounded: the oldest are forgotten. */
export class History {
  lines: Line[] = []
  /** The number of the first line that is kept. */
  first = 0
  /** The measured heights of chunks, by their numbers. */
  heights = new Map<number, number>()
  /** The position of the first visible line. Undefined at the newest line. */
  spot: Spot | undefined

  add(line: Line): void {
    this.lines.push(line)
    if (this.lines.length < LINES_MAX + CHUNK) return
    this.lines.splice(0, CHUNK)
    this.heights.delete(this.first / CHUNK)
    this.first += CHUNK
    // Lines that are forgotten cannot be seen any more. Otherwise the visible ones stay.
    const chunk = this.first / CHUNK
    if (this.spot && this.spot.chunk < chunk) this.spot = { chunk, into: 0 }
  }
}

/** Draws the chunks of a history that are near the visible part. Spacers stand for the others. */
export class View {
  #history = new History()
  #isPlanned = false
  #drawn = new Map<number, HTMLLIElement[]>()
  #lastLength = 0
  #width = 0
  /** The number of the first chunk at the last drawing, and the tops of all chunks. The last entry is the end of the list. */
  #from = 0
  #tops = [0]
  /** The scroll position after the last drawing. Undefined if that drew another history. */
  #top: number | undefined
  /** Until this time scroll positions are ignored: the browser may not have finished an earlier scroll. */
  #goingUntil = 0

  constructor(
    private view: HTMLElement,
    private above: HTMLElement,
    private list: HTMLElement,
    private below: HTMLElement,
    private newest: HTMLElement,
  ) {
    view.addEventListener("scroll", () => {
      this.#look()
      this.plan()
    }, { passive: true })
    newest.addEventListener("click", () => {
      this.#go(undefined)
      // The button hides, so the view takes its focus.
      view.focus()
    })
    for (const input of ["keydown", "pointerdown", "wheel"]) {
      addEventListener(input, () => (this.#goingUntil = 0), { capture: true, passive: true })
    }
    view.addEventListener("keydown", (event) => {
      const { key } = event
      if ((key !== "Home" && key !== "End") || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return
      event.preventDefault()
      this.#go(key === "End" ? undefined : { chunk: this.#from, into: 0 })
    })
    new ResizeObserver(() => {
      if (view.clientWidth !== this.#width) this.#history.heights.clear()
      this.#width = view.clientWidth
      this.plan()
    }).observe(view)
  }

  show(history: History): void {
    this.#look()
    this.#goingUntil = 0
    this.#history = history
    this.#top = undefined
    this.#clear()
    this.plan()
  }

  /** Plans one drawing before the next frame, for all changes until then. */
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

  /**
   * Goes to the beginning or the end at once. A scroll by the browser takes long, and stops where it is when heights on its way
   * change.
   */
  #go(spot: Spot | undefined): void {
    this.#goingUntil = performance.now() + GOING_MS
    this.#history.spot = spot
    this.plan()
  }

  /**
   * Notes where the user has scrolled to. Each drawing calls it, too, because the scroll event may come later. The drawing would
   * otherwise undo the scroll.
   */
  #look(): void {
    const { scrollTop, clientHeight, scrollHeight } = this.view
    if (this.#top === undefined || scrollTop === this.#top || performance.now() < this.#goingUntil) return
    // Upwards, one pixel leaves the end. Downwards, a position near the end counts as the end.
    const isAtEnd = scrollHeight - clientHeight - scrollTop <= (scrollTop > this.#top ? 24 : 1)
    this.#top = scrollTop
    const index = Math.max(0, this.#tops.findLastIndex((top, index) => top <= scrollTop && index < this.#tops.length - 1))
    this.#history.spot = isAtEnd ? undefined : { chunk: this.#from + index, into: scrollTop - this.#tops[index]! }
  }

  /** Adds up the heights of all chunks. */
  #layOut(): void {
    const { lines, first, heights } = this.#history
    const guess = this.#guess()
    this.#from = first / CHUNK
    this.#tops = [0]
    for (let top = 0, line = 0; line < lines.length; line += CHUNK) {
      top += heights.get((first + line) / CHUNK) ?? guess * Math.min(CHUNK, lines.length - line)
      this.#tops.push(top)
    }
  }

  #draw(): void {
    this.#look()
    this.#layOut()
    const { spot } = this.#history
    const view = this.view
    const topOf = (it: Spot) => this.#tops[it.chunk - this.#from]! + it.into
    // The chunks that are within a screen of the visible part.
    const screen = view.clientHeight
    const visible = spot ? topOf(spot) : this.#tops.at(-1)! - screen
    const chunks = this.#tops.length - 1
    let [start, end] = [0, chunks]
    for (let index = 0; index < chunks; index++) {
      if (this.#tops[index + 1]! < visible - screen) start = index + 1
      else if (spot && this.#tops[index + 1]! > visible + 2 * screen) end = Math.min(end, index + 1)
    }
    this.#render(this.#from + start, this.#from + end)
    this.#measure()
    this.#layOut()
    this.above.style.height = `${this.#tops[start]}px`
    this.below.style.height = `${this.#tops[chunks]! - this.#tops[end]!}px`
    // The visible lines stay where they are when the chunks above turn out longer or shorter.
    const wanted = spot ? topOf(spot) : view.scrollHeight - screen
    if (this.#top === undefined || Math.abs(wanted - view.scrollTop) > 1) view.scrollTop = wanted
    this.#top = view.scrollTop
    this.newest.hidden = !spot
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
        const row = this.#row(lines[number - first]!, lines[number - first - 1])
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

  /** A line that follows one of the same author shows the author and the time to screen readers alone. */
  #row(line: Line, previous: Line | undefined): HTMLLIElement {
    const row = document.createElement("li")
    row.className = line.look
    const time = document.createElement("time")
    time.dateTime = line.at.toISOString()
    time.textContent = clock.format(line.at)
    const what = withLinks(line.what)
    if (!line.who) {
      row.append(what, time)
      return row
    }
    const who = element("span", "who", line.who)
    const isMore = previous?.who === line.who && previous.look === line.look && line.at.getTime() - previous.at.getTime() < SAME_MS
    if (isMore) for (const it of [row, who, time]) it.classList.add(it === row ? "more" : "unseen")
    row.append(who, time, what)
    return row
  }

  #measure(): void {
    for (const [chunk, rows] of this.#drawn) {
      const [one, other] = [rows[0], rows[rows.length - 1]]
      if (one && other) this.#history.heights.set(chunk, other.offsetTop + other.offsetHeight - one.offsetTop)
    }
  }

  /** The guessed height of a line that was never drawn: the mean of the drawn lines. */
  #guess(): number {
    let [height, count] = [0, 0]
    for (const [chunk, rows] of this.#drawn) {
      height += this.#history.heights.get(chunk) ?? 0
      count += rows.length
    }
    return count > 0 ? height / count : 52
  }
}

/** The text, with a link in place of each address of a page. Its text is the address as it was written. */
function withLinks(text: string): HTMLElement {
  const made = element("span", "what", "")
  for (const [index, part] of text.split(/(https?:\/\/[^\s<>"']*[^\s<>"'.,;:!?)\]])/).entries()) {
    if (index % 2 === 0 || !URL.canParse(part)) {
      made.append(part)
      continue
    }
    const link = element("a", "", part) as HTMLAnchorElement
    link.href = part
    link.target = "_blank"
    link.rel = "noopener noreferrer"
    made.append(link)
  }
  return made
}

export function element(tag: string, look: string, text: string): HTMLElement {
  const made = document.createElement(tag)
  made.className = look
  made.textContent = text
  return made
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" })

/** Lines of one author within this time are one block. */
const SAME_MS = 60_000

/** Longer than browsers scroll after a key or a wheel. */
const GOING_MS = 500

/** Lines that enter and leave the document together. */
const CHUNK = 40

/** Lines that a room keeps. */
const LINES_MAX = 20_000
