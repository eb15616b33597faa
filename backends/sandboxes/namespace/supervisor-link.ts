import type { Duplex } from 'node:stream';
import { z } from 'zod';

/** Frames to and from supervisor.py, which says what each means. */

/** Bytes of a stream that may be under way before the other side has taken some; equal to WINDOW there. */
const windowBytes = 256 * 1024;
const pieceBytes = 64 * 1024;
/** A frame from inside is one piece of output with a short text. */
const frameBytesMax = 1024 * 1024;

const Ready = z.object({ ready: z.literal(true), port: z.number().nullable() });
const Event = z.discriminatedUnion('is', [
  z.object({ id: z.number(), is: z.enum(['out', 'err']) }),
  z.object({ id: z.number(), is: z.literal('took'), bytes: z.number() }),
  z.object({ id: z.number(), is: z.literal('fail'), error: z.string() }),
  z.object({
    id: z.number(),
    is: z.literal('end'),
    code: z.number().nullable(),
    signal: z.string().nullable(),
    isTimedOut: z.boolean(),
    isOverMemory: z.boolean(),
  }),
]);
export type CommandEnd = Omit<Extract<z.infer<typeof Event>, { is: 'end' }>, 'id' | 'is'>;

/** What a command is asked to do: a program, or a task of the supervisor's own. */
export type CommandStart = { readonly timeoutS: number } & (
  | { readonly argv: readonly string[]; readonly cwd: string; readonly env: Readonly<Record<string, string>> }
  | { readonly task: 'fill' | 'read' | 'write' | 'save'; readonly arguments: readonly (string | number)[] }
);

/** Takes output; what it returns is awaited before more is asked for. */
export type TakeOutput = (name: 'out' | 'err', bytes: Buffer) => void | Promise<void>;

interface Running {
  readonly take: TakeOutput;
  readonly end: (how: CommandEnd | Error) => void;
  /** Bytes of input that are under way. */
  underWay: number;
  mayFeed: () => void;
}

export interface LinkedCommand {
  readonly ended: Promise<CommandEnd>;
  readonly kill: () => void;
}

export class SupervisorLink {
  readonly #socket: Duplex;
  readonly #running = new Map<number, Running>();
  readonly #ready = later<{ readonly port: number | null }>();
  #received: Buffer[] = [];
  #receivedBytes = 0;
  #last = 0;
  #trouble: Error | null = null;

  constructor(socket: Duplex) {
    this.#socket = socket;
    this.#ready.promise.catch(() => undefined); // may come after nobody waits any more
    socket.on('data', (bytes: Buffer) => this.#receive(bytes));
    socket.on('error', () => undefined); // its process has ended, which is told with the reason
  }

  /** Says what the sandbox is, and waits until it stands. */
  open(sandbox: object): Promise<{ readonly port: number | null }> {
    this.#send(sandbox);
    return this.#ready.promise;
  }

  /** Every command under way and to come fails with this. The first one counts. */
  fail(error: Error): void {
    this.#trouble ??= error;
    this.#ready.reject(this.#trouble);
    const running = [...this.#running.values()];
    this.#running.clear();
    for (const { end, mayFeed } of running) {
      end(this.#trouble);
      mayFeed();
    }
  }

  begin(start: CommandStart, input: AsyncIterable<Uint8Array> | Uint8Array | null, take: TakeOutput): LinkedCommand {
    const id = ++this.#last;
    const { promise: ended, resolve, reject } = later<CommandEnd>();
    if (this.#trouble) {
      reject(this.#trouble);
      return { ended, kill: () => undefined };
    }
    const running: Running = {
      take,
      end: (how) => (how instanceof Error ? reject(how) : resolve(how)),
      underWay: 0,
      mayFeed: () => undefined,
    };
    this.#running.set(id, running);
    this.#send({ id, do: 'start', ...start });
    const kill = (): void => this.#send({ id, do: 'kill' });
    this.#feed(id, running, input ?? Buffer.alloc(0)).catch((error: unknown) => {
      this.#running.delete(id);
      kill();
      reject(error);
    });
    return { ended, kill };
  }

  async #feed(id: number, running: Running, input: AsyncIterable<Uint8Array> | Uint8Array): Promise<void> {
    for await (const chunk of input instanceof Uint8Array ? [input] : input) {
      for (let at = 0; at < chunk.length; at += pieceBytes) {
        while (running.underWay >= windowBytes && this.#running.get(id) === running)
          await new Promise<void>((resolve) => (running.mayFeed = resolve));
        if (this.#running.get(id) !== running) return;
        const piece = chunk.subarray(at, at + pieceBytes);
        running.underWay += piece.length;
        this.#send({ id, do: 'in' }, piece);
      }
    }
    this.#send({ id, do: 'close' });
  }

  #send(message: object, content: Uint8Array = Buffer.alloc(0)): void {
    if (this.#socket.destroyed || this.#trouble) return;
    const text = Buffer.from(JSON.stringify(message));
    const head = Buffer.alloc(8);
    head.writeUInt32BE(text.length, 0);
    head.writeUInt32BE(content.length, 4);
    this.#socket.write(Buffer.concat([head, text, content]));
  }

  #receive(bytes: Buffer): void {
    this.#received.push(bytes);
    this.#receivedBytes += bytes.length;
    try {
      for (;;) {
        const head = this.#peek(8);
        if (head === null) return;
        const [text, content] = [head.readUInt32BE(0), head.readUInt32BE(4)];
        if (text + content > frameBytesMax) throw new Error('the sandbox sent what is no frame');
        const frame = this.#peek(8 + text + content);
        if (frame === null) return;
        this.#received = [Buffer.concat(this.#received).subarray(frame.length)];
        this.#receivedBytes -= frame.length;
        this.#handle(JSON.parse(frame.subarray(8, 8 + text).toString()), frame.subarray(8 + text));
      }
    } catch (error) {
      this.fail(error as Error);
      this.#socket.destroy();
    }
  }

  #peek(length: number): Buffer | null {
    if (this.#receivedBytes < length) return null;
    if (this.#received[0]!.length < length) this.#received = [Buffer.concat(this.#received)];
    return this.#received[0]!.subarray(0, length);
  }

  #handle(message: unknown, content: Buffer): void {
    const ready = Ready.safeParse(message);
    if (ready.success) return this.#ready.resolve(ready.data);
    const event = Event.parse(message);
    const running = this.#running.get(event.id);
    if (!running) return; // given up since
    switch (event.is) {
      case 'out':
      case 'err':
        return void this.#give(event.id, running, event.is, content);
      case 'took':
        running.underWay -= event.bytes;
        return running.mayFeed();
      case 'fail':
        this.#forget(event.id, running);
        return running.end(new Error(`the command did not begin: ${event.error}`));
      case 'end':
        this.#forget(event.id, running);
        return running.end(event);
      default:
        return event satisfies never;
    }
  }

  #forget(id: number, running: Running): void {
    this.#running.delete(id);
    running.mayFeed();
  }

  async #give(id: number, running: Running, name: 'out' | 'err', content: Buffer): Promise<void> {
    try {
      await running.take(name, content);
      this.#send({ id, do: 'took', of: name, bytes: content.length });
    } catch (error) {
      this.#forget(id, running);
      this.#send({ id, do: 'kill' });
      running.end(error as Error);
    }
  }
}

interface Later<T> {
  readonly promise: Promise<T>;
  readonly resolve: (value: T) => void;
  readonly reject: (reason: unknown) => void;
}

function later<T>(): Later<T> {
  let [resolve, reject]: [(value: T) => void, (reason: unknown) => void] = [() => undefined, () => undefined];
  const promise = new Promise<T>((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject };
}
