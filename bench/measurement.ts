import { setMaxListeners } from 'node:events';
import { Command } from 'commander';

/** Services for a measurement, besides its options. */
export interface Bench {
  /** One line of progress. */
  readonly say: (line: string) => void;
  /** Names the current work, which is printed with its duration during silences. */
  readonly doing: (what: string) => void;
  /** Aborted by Ctrl-C. */
  readonly signal: AbortSignal;
}

/** Plain JSON; units at the end of the names. */
export type Figures = Readonly<Record<string, unknown>>;

/** The machine lacks something; the message says what to install. */
export class CannotMeasure extends Error {}

const exitCodes = { failed: 1, cannotMeasure: 3, interrupted: 130 };

/** Nothing is silent for longer than 10 s. */
const silenceMs = 8_000;

/** A measurement as a command. It ends with its figures as one line of JSON, the last one on stdout. */
export function measurement<Options extends object>(
  name: string,
  description: string,
  measure: (bench: Bench, options: Options) => Promise<Figures>,
): Command {
  return new Command(name)
    .description(description)
    .option('--json', 'nothing but the figures on stdout; progress goes to stderr')
    .action(async (options: Options & { json?: boolean }) => {
      process.exitCode = await run(measure, options, options.json ? process.stderr : process.stdout);
    });
}

async function run<Options>(
  measure: (bench: Bench, options: Options) => Promise<Figures>,
  options: Options,
  progress: NodeJS.WritableStream,
): Promise<number> {
  const interrupted = new AbortController();
  setMaxListeners(0, interrupted.signal); // a Temporal client listens once for each of its calls
  const onSignal = (): void => interrupted.abort(new Error('interrupted'));
  process.on('SIGINT', onSignal).on('SIGTERM', onSignal);
  const clock = startClock(progress);
  try {
    const figures = await measure({ ...clock, signal: interrupted.signal }, options);
    process.stdout.write(`${JSON.stringify(figures)}\n`);
    return 0;
  } catch (error) {
    if (interrupted.signal.aborted) return exitCodes.interrupted;
    if (!(error instanceof CannotMeasure)) throw error;
    process.stderr.write(`${error.message}\n`);
    return exitCodes.cannotMeasure;
  } finally {
    clock.stop();
    process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
  }
}

function startClock(progress: NodeJS.WritableStream): Pick<Bench, 'say' | 'doing'> & { stop: () => void } {
  const startedAt = Date.now();
  let lastLineAt = startedAt;
  let current = { what: 'starting', since: startedAt };
  const say = (line: string): void => {
    lastLineAt = Date.now();
    progress.write(`${seconds(startedAt).padStart(4)} s  ${line}\n`);
  };
  const timer = setInterval(() => {
    if (Date.now() - lastLineAt >= silenceMs) say(`… ${current.what}, ${seconds(current.since)} s`);
  }, 1_000);
  return {
    say,
    doing: (what) => {
      current = { what, since: Date.now() };
      say(what);
    },
    stop: () => clearInterval(timer),
  };
}

function seconds(since: number): string {
  return Math.round((Date.now() - since) / 1000).toString();
}
