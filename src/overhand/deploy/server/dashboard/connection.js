// News from the server: server-sent events, tried again for ever, and checked when they fall silent.

const FIRST_WAIT = 1_000;
const LONGEST_WAIT = 15_000;
const GONE_AFTER = 30_000;
// The server's comments keep the line open but no script hears them: silence is no news, so we ask.
const ASK_AFTER = 30_000;
// No event says that an alarm is over.
const ASK_EVERY = 60_000;

export class Connection {
  #url;
  #hear;
  #catchUp;
  #source = null;
  #open = false;
  #retry = null;
  #wait = FIRST_WAIT;
  #lostAt = null;
  #newsAt = null;
  #askedAt = Date.now();

  // `hear`: what to do with the data of each kind of event. `catchUp`: fetches the whole state.
  constructor(url, hear, catchUp) {
    this.#url = url;
    this.#hear = hear;
    this.#catchUp = catchUp;
    addEventListener("online", () => this.#connect());
    setInterval(() => this.#check(), 1_000);
    this.#connect();
  }

  // "connecting", "live", "reconnecting" or "gone".
  get state() {
    if (this.#open) return "live";
    if (this.#lostAt === null) return "connecting";
    return Date.now() - this.#lostAt < GONE_AFTER ? "reconnecting" : "gone";
  }

  // Milliseconds since the server last said anything, or null if it never did.
  get silence() {
    return this.#newsAt === null ? null : Date.now() - this.#newsAt;
  }

  #connect() {
    clearTimeout(this.#retry);
    this.#source?.close();
    this.#open = false;
    this.#askedAt = Date.now();
    const source = new EventSource(this.#url);
    this.#source = source;
    source.onopen = () => this.#ask();
    source.onerror = () => this.#lose(source);
    for (const [kind, hear] of Object.entries(this.#hear)) {
      source.addEventListener(kind, (event) => {
        this.#newsAt = Date.now();
        hear(event.data);
      });
    }
  }

  // Events missed while away are not sent again, so every opening starts from the whole state.
  async #ask() {
    const source = this.#source;
    this.#askedAt = Date.now();
    try {
      await this.#catchUp();
    } catch (error) {
      console.debug(error);
      this.#lose(source);
      return;
    }
    this.#newsAt = Date.now();
    if (source !== this.#source || source.readyState !== EventSource.OPEN) return;
    this.#open = true;
    this.#lostAt = null;
    this.#wait = FIRST_WAIT;
  }

  #lose(source) {
    if (source !== this.#source) return;
    source.close();
    this.#source = null;
    this.#open = false;
    this.#lostAt ??= Date.now();
    // Not all at the same moment when a server comes back to a hundred pages.
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.#connect(), this.#wait * (0.5 + Math.random() / 2));
    this.#wait = Math.min(LONGEST_WAIT, 2 * this.#wait);
  }

  #check() {
    const asked = Date.now() - this.#askedAt;
    const quiet = Math.min(asked, this.silence ?? asked);
    if (!this.#source || (quiet < ASK_AFTER && asked < ASK_EVERY)) return;
    if (this.#open) this.#ask();
    else this.#lose(this.#source);
  }
}
