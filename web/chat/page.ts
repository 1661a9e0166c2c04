/** The chat page of `tidewire serve --web`. Nothing that a name or a message contains ever becomes HTML. */

import { Client, ConnectError, ErrorCode, GoAwayCode, RequestError, Room, RoomEvent, describe, visible } from "../client/src/index.js"
import type { CloseReason, Event } from "../client/src/index.js"
import { History, Line, View, element } from "./history.js"

/** A room that this tab is in. */
interface ChatRoom {
  name: string
  room: Room | undefined
  history: History
  unread: number
  /** The unsent words in the field of messages while another room is shown. */
  draft: string
  /** The newest messages of this tab, which it shows already. After a reconnect the server sends them again. */
  said: string[]
  /** The members that left, with the time. */
  away: Map<string, Date>
}

const find = <T extends HTMLElement = HTMLElement>(id: string) => document.getElementById(id) as T
const input = (id: string) => find<HTMLInputElement>(id)
const view = new View(find("view"), find("above"), find("list"), find("below"), find("newest"))
const chats = new Map<string, ChatRoom>()
let client: Client | undefined
/** The number of times that the user entered or left. Events of an earlier client are ignored. */
let entries = 0
let present: ChatRoom | undefined
let me = ""
let isSidePlanned = false

/** The server has the same address as this page. */
const address = location.href.replace(/^http/, "ws").replace(/[?#].*/, "")

async function enter(): Promise<void> {
  const [name, room, token] = [input("name").value.trim().normalize(), input("room").value.trim().normalize(), input("token").value.trim()]
  find("refusal").textContent = ""
  find<HTMLButtonElement>("go").disabled = true
  try {
    me = name
    const entry = ++entries
    // The token is kept nowhere but in this tab's memory.
    client = await Client.connect(address, { credentials: token, onEvent: (event) => entry === entries && hear(event) })
    await join(room)
    find("enter").hidden = true
    find("chat").hidden = false
    input("text").focus()
  } catch (error) {
    leaveAll(refusal(error), error instanceof ConnectError && error.reason.code === GoAwayCode.Unauthenticated)
  } finally {
    find<HTMLButtonElement>("go").disabled = false
  }
}

/** Shows the first form again, with the reason. */
function leaveAll(why: string, isToken: boolean): void {
  entries++
  void client?.close()
  client = present = undefined
  chats.clear()
  input("text").value = ""
  isOver(false)
  find("chat").hidden = true
  find("enter").hidden = false
  find("refusal").textContent = why
  if (isToken) find("token").closest("details")!.open = true
  input(isToken ? "token" : "name").focus()
}

function refusal(error: unknown): string {
  if (error instanceof RequestError && error.code === ErrorCode.NameTaken) return `${sentence(visible(error.message))}. Try another name.`
  if (error instanceof ConnectError) return ending(error.reason)
  return sentence(error instanceof Error ? visible(error.message) : String(error))
}

/** Why a connection ended, as a sentence for the user of this page. */
function ending(reason: CloseReason): string {
  if (reason.name === "go_away") {
    if (reason.code === GoAwayCode.Unauthenticated) return sentence(visible(reason.text) || "the server asks for a token")
    if (reason.code === GoAwayCode.Removed) return `You were removed from this server${reason.text && `: ${visible(reason.text)}`}`
  }
  return sentence(describe(reason))
}

const sentence = (text: string) => text.slice(0, 1).toUpperCase() + text.slice(1)

/** Whether this page can say nothing more. */
function isOver(over: boolean): void {
  for (const id of ["text", "send", "other", "join", "leave"]) find<HTMLInputElement>(id).disabled = over
}

async function join(name: string): Promise<void> {
  const known = chats.get(name)
  if (known) return show(known)
  const chat: ChatRoom = { name, room: undefined, history: new History(), unread: 0, draft: "", said: [], away: new Map() }
  chats.set(name, chat)
  try {
    chat.room = await client!.join(name, me, { onEvent: (event) => hearRoom(chat, event) })
  } catch (error) {
    chats.delete(name)
    throw error
  }
  show(chat)
  note(chat, `You are in ${name} as ${me}. What you say reaches everybody here; /msg NAME text reaches one member.`)
}

function show(chat: ChatRoom): void {
  const field = input("text")
  if (present) present.draft = field.value
  field.value = chat.draft
  present = chat
  chat.unread = 0
  find("title").textContent = chat.name
  document.title = `${chat.name} · Tidewire chat`
  view.show(chat.history)
  planSide()
}

/** Events of the connection. */
function hear(event: Event): void {
  switch (event.type) {
    case "opened":
      return state("Connected")
    case "reconnecting":
      return state(`Not connected. Trying again in ${Math.ceil(event.delay / 1000)} s`, true, event.cause)
    case "credentials_expire":
      return state(`Your token expires in ${Math.ceil(event.left / 1000)} s`, true)
    case "closed":
      // An old token is not tried again and again.
      if (event.reason.name === "go_away" && event.reason.code === GoAwayCode.Unauthenticated) return leaveAll(ending(event.reason), true)
      return state(ending(event.reason), true)
    case "error":
      return say("gap", `Not said: ${visible(event.error.message)}`)
    case "ended":
      isOver(true)
      say("gap", "This page is not connected any more. Reload it to enter again.")
  }
}

function hearRoom(chat: ChatRoom, event: RoomEvent): void {
  switch (event.type) {
    case "message": {
      const who = event.isPrivate ? `${visible(event.name)} (to you only)` : visible(event.name)
      const what = text(event.payload)
      const isMine = event.name === me && !event.isPrivate
      if (isMine && chat.said.includes(what)) return void chat.said.splice(0, chat.said.indexOf(what) + 1)
      return add(chat, { who, what, at: new Date(), look: event.isPrivate ? "private" : isMine ? "mine" : "" })
    }
    case "presence": {
      const name = visible(event.name)
      if (event.event === "left") {
        chat.away.set(name, new Date())
        if (chat.away.size > AWAY_MAX) chat.away.delete(chat.away.keys().next().value!)
      } else chat.away.delete(name)
      if (event.event !== "here") note(chat, `${name} ${event.event}.`)
      return planSide()
    }
    case "gap":
      return add(chat, { who: "", what: `${event.lost} messages are missing here: this page read too slowly.`, at: new Date(), look: "gap" })
    case "interrupted":
      return add(chat, { who: "", what: "The connection ended here. Messages may be missing.", at: new Date(), look: "gap" })
    case "resumed":
      chat.away.clear()
      return note(chat, "Connected again.")
    case "recovered": {
      if (event.missing === 0) return note(chat, "What was said in between follows.")
      const what = event.missing === null ? "It is not known how many messages are missing here." : `${event.missing} messages are missing here.`
      return add(chat, { who: "", what, at: new Date(), look: "gap" })
    }
    case "refused":
      return add(chat, { who: "", what: `You are not in this room any more: ${visible(event.error.message)}`, at: new Date(), look: "gap" })
    case "removed":
      return add(chat, { who: "", what: "You were taken out of this room.", at: new Date(), look: "gap" })
    case "error":
      return add(chat, { who: "", what: `Not said: ${visible(event.error.message)}`, at: new Date(), look: "gap" })
  }
}

const note = (chat: ChatRoom, what: string) => add(chat, { who: "", what, at: new Date(), look: "note" })

function say(look: Line["look"], what: string): void {
  if (present) add(present, { who: "", what, at: new Date(), look })
}

function add(chat: ChatRoom, line: Line): void {
  chat.history.add(line)
  if (chat === present) {
    view.plan()
    speak(line)
  } else if (line.look !== "note" && chat.unread++ === 0) planSide()
}

let unspoken: Line[] = []

/** Announces new lines to a screen reader, at most once a second. Of more than four lines it announces only the number. */
function speak(line: Line): void {
  unspoken.push(line)
  if (unspoken.length > 1) return
  setTimeout(() => {
    const lines = unspoken.splice(0)
    const words = lines.length > 4 ? [`${lines.length} new messages`] : lines.map((it) => (it.who ? `${it.who}: ${it.what}` : it.what))
    const log = find("spoken")
    log.append(...words.map((it) => element("p", "", it)))
    while (log.childElementCount > 8) log.firstElementChild!.remove()
  }, 1_000)
}

function state(words: string, isBad = false, cause = ""): void {
  const line = find("state")
  line.textContent = words
  line.title = cause
  line.classList.toggle("bad", isBad)
}

/** Plans one drawing of rooms and members, for all changes until then. Rooms with many members are drawn less often. */
function planSide(): void {
  if (isSidePlanned) return
  isSidePlanned = true
  const pause = 50 + (present?.room?.members.size ?? 0) / 20
  setTimeout(() => {
    isSidePlanned = false
    drawSide()
  }, pause)
}

function drawSide(): void {
  fill(find("rooms"), [...chats.keys()], (name) => {
    const button = element("button", "", name)
    button.append(element("span", "unread", ""))
    button.addEventListener("click", () => {
      openSide(false)
      show(chats.get(name)!)
    })
    return item(button)
  })
  let unread = 0
  for (const [index, chat] of [...chats.values()].entries()) {
    const button = find("rooms").children[index]!.firstElementChild!
    button.lastElementChild!.textContent = chat.unread > 99 ? "99+" : chat.unread ? String(chat.unread) : ""
    if (chat === present) button.setAttribute("aria-current", "true")
    else button.removeAttribute("aria-current")
    unread += chat.unread
  }
  // On a narrow screen there is no place for the whole name.
  find("menu").replaceChildren("Rooms", element("span", "unseen", " and members"), unread ? ` (${unread} unread)` : "")
  const names = [...(present?.room?.members.values() ?? [])].map(visible).sort(order.compare)
  find("count").textContent = `(${names.length + 1})`
  find("self").textContent = `${me} (you)`
  fill(find("members"), [...new Set(names.slice(0, MEMBERS_SHOWN_MAX))], (name) => {
    const button = element("button", "", name)
    button.title = `Write to ${name} only`
    button.addEventListener("click", () => {
      openSide(false)
      input("text").value = `/msg ${name} `
      input("text").focus()
    })
    return item(button)
  })
  const more = names.length - MEMBERS_SHOWN_MAX
  find("more").textContent = more > 0 ? `and ${more} more` : ""
  const away = [...(present?.away ?? [])].reverse()
  find("away-title").hidden = away.length === 0
  find("away").replaceChildren(...away.map(([name, at]) => element("li", "", `${name}, left at ${at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}`)))
}

/** Gives a list one item for each key, in this order. Items that are there stay, and so does the focus. */
function fill(list: HTMLElement, keys: string[], make: (key: string) => HTMLElement): void {
  const wanted = new Set(keys)
  const known = new Map<string, HTMLElement>()
  for (const row of [...list.children] as HTMLElement[]) {
    if (wanted.has(row.dataset.key!)) known.set(row.dataset.key!, row)
    else row.remove()
  }
  let next = list.firstElementChild
  for (const key of keys) {
    const row = known.get(key) ?? make(key)
    row.dataset.key = key
    if (row === next) next = next.nextElementSibling
    else list.insertBefore(row, next)
  }
}

function item(content: HTMLElement): HTMLElement {
  const made = document.createElement("li")
  made.append(content)
  return made
}

/** On a narrow screen the rooms and members are behind a button. */
function openSide(isOpen: boolean): void {
  find("side").classList.toggle("open", isOpen)
  find("menu").setAttribute("aria-expanded", String(isOpen))
}

async function send(): Promise<void> {
  const field = input("text")
  const words = field.value
  const chat = present
  if (!words.trim() || !chat?.room) return
  const [, to, whispered] = /^\/msg (\S+) (.+)$/s.exec(words) ?? []
  const [, command] = /^\/(\S*)/.exec(words) ?? []
  if (command !== undefined && !to) {
    const what = command === "msg" ? "Write /msg NAME text." : `There is no command /${command}. A message may begin with a space and then a slash.`
    return add(chat, { who: "", what, at: new Date(), look: "gap" })
  }
  try {
    if (to) await chat.room.whisper(to.normalize(), whispered!)
    else {
      chat.room.say(words)
      chat.said.push(words)
      if (chat.said.length > SAID_MAX) chat.said.shift()
    }
    if (field.value === words) field.value = ""
    add(chat, { who: to ? `${me} (to ${to} only)` : me, what: whispered ?? words, at: new Date(), look: to ? "private" : "mine" })
  } catch (error) {
    // The words stay in the field.
    const isUnknown = to && error instanceof RequestError && error.code === ErrorCode.NotFound
    add(chat, { who: "", what: isUnknown ? `Not sent: no member is called ${to}.` : `Not sent: ${refusal(error)}`, at: new Date(), look: "gap" })
  }
}

async function leave(): Promise<void> {
  const chat = present
  if (!chat) return
  chats.delete(chat.name)
  await chat.room?.leave().catch(() => {})
  const [next] = chats.values()
  if (next) return show(next)
  // Without a room there is nothing to see.
  leaveAll("", false)
}

function on(id: string, event: string, act: () => unknown): void {
  find(id).addEventListener(event, (cause) => {
    cause.preventDefault()
    act()
  })
}

on("enter-form", "submit", enter)
on("say-form", "submit", send)
on("leave", "click", leave)
on("join-form", "submit", async () => {
  const field = input("other")
  try {
    await join(field.value.trim().normalize())
    field.value = ""
  } catch (error) {
    say("gap", `Not joined: ${refusal(error)}`)
  }
})
on("menu", "click", () => openSide(!find("side").classList.contains("open")))
find("side").addEventListener("keydown", ({ key }) => {
  if (key !== "Escape") return
  openSide(false)
  find("menu").focus()
})
input("name").focus()

const order = new Intl.Collator()
const decoder = new TextDecoder()
/** Longest text of a message that is shown, in bytes: more than the field for messages takes. */
const TEXT_BYTES_MAX = 32_000
const text = (payload: Uint8Array) => {
  const shown = decoder.decode(payload.subarray(0, TEXT_BYTES_MAX))
  return payload.length > TEXT_BYTES_MAX ? `${shown}… (cut: ${payload.length} bytes)` : shown
}

/** Limits of the lists: members, and members that left. */
const MEMBERS_SHOWN_MAX = 500
const AWAY_MAX = 50
/** Own messages that a room remembers. The histories of most servers have fewer. */
const SAID_MAX = 100
