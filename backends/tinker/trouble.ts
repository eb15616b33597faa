import { withoutSecrets } from '../../config/toml/secrets.ts';
import type { TroubleKind } from './types.ts';

/** A failed call, with its meaning for the model. Ports turn it into errors of ours. */
export class TinkerTrouble extends Error {
  readonly kind: TroubleKind;
  readonly status: number | null;

  constructor(kind: TroubleKind, message: string, options: { status?: number; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'TinkerTrouble';
    this.kind = kind;
    this.status = options.status ?? null;
  }
}

export function isTrouble(error: unknown, ...kinds: readonly TroubleKind[]): error is TinkerTrouble {
  return error instanceof TinkerTrouble && (kinds.length === 0 || kinds.includes(error.kind));
}

const wordsMax = 600;

/** The server's message in a failed answer: FastAPI's `detail`, Tinker's `error`, or the text itself. */
export function wordsOf(text: string): string {
  let words = text;
  try {
    const parsed: unknown = JSON.parse(text);
    if (typeof parsed === 'object' && parsed !== null) {
      const { detail, error, message } = parsed as { detail?: unknown; error?: unknown; message?: unknown };
      const said = detail ?? error ?? message;
      if (said !== undefined) words = typeof said === 'string' ? said : JSON.stringify(said);
    }
  } catch {
    // Not JSON: the text is the message.
  }
  return words.length > wordsMax ? `${words.slice(0, wordsMax)}…` : words;
}

/** The kind of a refusal by its words. SkyRL answers 400 for any failure while it worked on a request. */
export function troubleKindOf(status: number, words: string): TroubleKind {
  if (/not loaded|stale request|future not found|session not found|model not found/i.test(words)) return 'lost';
  if (/checkpoint not found|checkpoint .{0,200}(expired|deleted)|no such checkpoint/i.test(words)) return 'missing';
  if (/maximum number of lora adapters/i.test(words)) return 'full';
  if (status === 410) return 'lost';
  if (status >= 500) return 'failed';
  return 'refused';
}

/** Message for people, without any key in it. */
export function saidBy(url: string, route: string, what: string, secrets: readonly string[]): string {
  return withoutSecrets(`${url}${route}: ${what}`, secrets);
}
