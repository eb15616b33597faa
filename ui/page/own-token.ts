/**
 * The token from the printed address. It follows the `#`, which browsers send to no server, and is removed from the address at once. It is
 * kept in the session storage of this tab, which belongs to one port of one host; a cookie would go to every port. Tabs with the same
 * address share it.
 */
export class OwnToken {
  readonly #tabs = new BroadcastChannel(name);

  /** Takes the token from the address, else from this tab's storage, else from another tab. */
  static async take(): Promise<OwnToken> {
    const own = new OwnToken();
    const given = tokenIn(location.hash);
    if (given !== null) own.#adopt(given);
    else if (stored() === null) await own.#ask();
    own.#tabs.addEventListener('message', ({ data }: MessageEvent<unknown>) => own.#hear(data));
    addEventListener('hashchange', () => tokenIn(location.hash) !== null && location.reload());
    return own;
  }

  get headers(): Record<string, string> {
    const token = stored();
    return token === null ? {} : { authorization: `Bearer ${token}` };
  }

  #adopt(token: string): void {
    sessionStorage.setItem(name, token);
    history.replaceState(null, '', location.pathname);
    this.#say({ token }); // a tab that was open before the server restarted continues with the new token
  }

  #ask(): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, answerMs);
      this.#tabs.addEventListener('message', ({ data }: MessageEvent<unknown>) => {
        if (!this.#keep(data)) return;
        clearTimeout(timer);
        resolve();
      });
      this.#say({ asks: true });
    });
  }

  #say(said: object): void {
    // A BroadcastChannel belongs to one origin and takes no target.
    // oxlint-disable-next-line unicorn/require-post-message-target-origin
    this.#tabs.postMessage(said);
  }

  #hear(said: unknown): void {
    const token = stored();
    if (!this.#keep(said) && token !== null) this.#say({ token });
  }

  #keep(said: unknown): boolean {
    if (typeof said !== 'object' || said === null || !('token' in said)) return false;
    sessionStorage.setItem(name, String(said.token));
    return true;
  }
}

const name = 'ratchet-token';
/** How long to wait for another tab's answer; most of the time there is no other tab. */
const answerMs = 300;

function tokenIn(hash: string): string | null {
  return /^#token=([\w-]+)$/.exec(hash)?.[1] ?? null;
}

function stored(): string | null {
  return sessionStorage.getItem(name);
}
