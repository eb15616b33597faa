import type { RunEvent, RunStatus } from '../../workflows/control/messages.ts';
import type { Curves } from '../../runs/metrics/curves.ts';
import { type Follower, lineOf, type RunSnapshot, troubleOf } from '../follow/follow-run.ts';
import { joinedCurves } from '../follow/joined-curves.ts';
import { frame } from './frame.ts';
import { afterKey, home, type ViewPosition, type TypedKey } from './keys.ts';
import { inAscii } from './lines.ts';
import { rolloutLines } from './pages.ts';
import type { ShownGroup, StoredRollouts } from './stored-rollouts.ts';
import { Terminal, type TerminalOptions } from './terminal.ts';
import { viewModel } from './view-model.ts';

export interface ViewOptions extends Pick<TerminalOptions, 'screen' | 'keyboard' | 'shows'> {
  readonly run: string;
  readonly leaving: 'detach' | 'stop';
  /** Called once the run has answered; null when the store cannot be reached. */
  readonly rollouts: (status: RunStatus) => StoredRollouts | null;
  /** Called on q and Ctrl-C. */
  readonly onLeave: () => void;
  /** How a line for people is written above the view, as with the time before it. */
  readonly asLine: (text: string) => string;
}

/** Least interval between reads of a sample, which take at most one per cent of the time. */
const sampleMs = 4_000;
const sampleShare = 0.01;
const faultsKept = 200;
const noCurves: Curves = { trend: [], evals: [] };
const faultKinds: readonly RunEvent['kind'][] = [
  'recovery',
  'refused',
  'regression',
  'warning',
  'paused',
  'resumed',
  'upgraded',
  'rewound',
];

/** A step that lost rollouts is a fault, too. */
function isFault({ kind, values }: RunEvent): boolean {
  return faultKinds.includes(kind) || (kind === 'step' && Number(values['failed_rollouts'] ?? 0) > 0);
}

/**
 * A run on a terminal: events go into the scroll-back as lines, and a few rows below them are redrawn when something
 * changes. The scroll-back is never cleared and the screen never switched; the last drawing stays as text.
 */
export class TerminalView implements Follower {
  readonly #options: ViewOptions;
  readonly #terminal: Terminal;
  #place: ViewPosition = home;
  #snapshot: RunSnapshot = { is: 'not open yet', status: null, pending: [] };
  readonly #faults: RunEvent[] = [];
  #lines: string[] = [];
  /** Undefined until the run has answered. */
  #rollouts: StoredRollouts | null | undefined;
  #groups: readonly ShownGroup[] = [];
  #groupsStep: number | null = null;
  /** Resolves the wait of a user who reads a page after the run's end. */
  #onRead: (() => void) | null = null;
  #storeProblem: string | null = null;
  /** Curves of the whole run. A status holds only their newest part. */
  #curves: Curves = noCurves;
  #curvesOf: string | null = null;
  #sampled = { step: -1, atMs: -Infinity, tookMs: 0, isLoading: false };
  #isOpen = false;
  #warningListeners: ((warning: Error) => void)[] = [];

  constructor(options: ViewOptions) {
    this.#options = options;
    const { screen, keyboard, shows } = options;
    const redraw = (): void => this.#draw();
    const [onKey, onExit] = [this.#onKey, this.close];
    this.#terminal = new Terminal({ screen, keyboard, shows, takes: 'rows below', onKey, onRedraw: redraw, onExit });
  }

  open(): void {
    this.#isOpen = true;
    // Node would write its own output between the rows.
    this.#warningListeners = process.listeners('warning');
    process.removeAllListeners('warning').on('warning', this.#onWarning);
    this.#terminal.open();
    this.#draw();
  }

  /** The last rows stay, the cursor is below them and visible, keys are typed as before. Also at the end of the process. */
  readonly close = (): void => {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#flush(false);
    process.off('warning', this.#onWarning);
    for (const listener of this.#warningListeners) process.on('warning', listener);
    this.#terminal.close();
  };

  readonly say = (line: string): void => {
    this.#lines.push(this.#options.asLine(line));
    this.#flush();
  };

  readonly event = (event: RunEvent): void => {
    this.earlier([event]);
    this.#lines.push(this.#options.asLine(lineOf(event))); // drawn with the snapshot it came with
  };

  readonly earlier = (events: readonly RunEvent[]): void => {
    this.#faults.push(...events.filter(isFault));
    this.#faults.splice(0, this.#faults.length - faultsKept);
  };

  readonly waiting = (): void => undefined; // nothing to do: waits are always on screen

  readonly snapshot = (snapshot: RunSnapshot): void => {
    this.#snapshot = snapshot;
    if (snapshot.status) this.#growCurves(snapshot.status);
    this.#flush();
    this.#readSample();
  };

  /**
   * After the run's end, keeps the page open for a user who reads one, and keeps their keys from the shell. Resolves
   * when they go back.
   */
  readonly untilRead = (left: AbortSignal): Promise<void> => {
    if (!this.#isOpen || this.#place.page === 'run' || !this.#terminal.hasKeys) return Promise.resolve();
    this.say('the run has ended; [esc] closes this view');
    return new Promise((resolve) => {
      this.#onRead = resolve;
      left.addEventListener('abort', () => resolve(), { once: true });
    });
  };

  /** Lines that wait go above the rows that are drawn. */
  #flush(hasFooter = true): void {
    if (this.#lines.length > 0) {
      const text = this.#lines.join('');
      this.#lines = [];
      // Left to the terminal to wrap: it is the scroll-back's text.
      this.#terminal.print(this.#options.shows.hasUnicode ? text : inAscii(text));
    }
    this.#draw(hasFooter);
  }

  #draw(hasFooter = true): void {
    const { run, leaving } = this.#options;
    const lines = frame({
      model: viewModel(this.#snapshot, Date.now(), this.#curves),
      trouble: troubleOf(this.#snapshot),
      run,
      place: this.#place,
      groupsStep: this.#groupsStep,
      groups: this.#rollouts === null || this.#storeProblem !== null ? null : this.#groups,
      storeProblem: this.#storeProblem,
      evals: this.#curves.evals,
      faults: this.#faults,
      leaving,
      ...this.#terminal.size,
    });
    this.#terminal.draw(hasFooter ? lines : lines.slice(0, -1));
  }

  readonly #onWarning = ({ name, message }: Error): void => this.say(`${name}: ${message}`);

  readonly #onKey = (key: TypedKey): void => {
    const groups = this.#groups;
    const group = groups[Math.min(this.#place.group, groups.length - 1)];
    const rollout = group?.rollouts[Math.min(this.#place.rollout ?? 0, group.rollouts.length - 1)];
    const next = afterKey(this.#place, key, {
      groups: groups.length,
      rollouts: group?.rollouts.length ?? 0,
      lines: group && rollout ? rolloutLines(group, rollout, this.#terminal.size.columns).length : 0,
    });
    if (this.#onRead && (next === 'leave' || (next !== 'suspend' && next.page === 'run'))) return this.#onRead();
    if (next === 'leave') return this.#options.onLeave();
    if (next === 'suspend') return this.#terminal.suspend();
    this.#place = next;
    this.#draw();
    this.#readSample();
  };

  /** Read from the store once for each lineage; every status then adds what is new. */
  #growCurves(status: RunStatus): void {
    if (this.#curvesOf !== status.lineage) {
      [this.#curves, this.#curvesOf] = [noCurves, status.lineage];
      void this.#openStore(status)
        ?.curves(status.lineage)
        .then(
          (stored) => {
            if (this.#curvesOf === status.lineage) this.#curves = joinedCurves(stored, this.#curves);
          },
          (error: unknown) => void (this.#storeProblem = error instanceof Error ? error.message : String(error)),
        );
    }
    this.#curves = joinedCurves(this.#curves, status);
  }

  #openStore(status: RunStatus): StoredRollouts | null {
    if (this.#rollouts === undefined) this.#rollouts = this.#options.rollouts(status);
    return this.#rollouts;
  }

  /** Runs in the background; a page that is open stays unchanged. */
  #readSample(): void {
    const { status } = this.#snapshot;
    const rollouts = status && this.#openStore(status);
    const { step, atMs, tookMs, isLoading } = this.#sampled;
    if (!rollouts || status === null || status.step < 1 || isLoading) return;
    if (status.step === step || this.#place.rollout !== null) return;
    const startedAtMs = performance.now();
    if (startedAtMs - atMs < Math.max(sampleMs, tookMs / sampleShare)) return;
    this.#sampled.isLoading = true;
    void rollouts
      .ofStep(status.lineage, status.step)
      .then(
        (groups) => {
          this.#storeProblem = null;
          if (groups.length > 0) [this.#groups, this.#groupsStep] = [groups, status.step];
        },
        (error: unknown) => void (this.#storeProblem = error instanceof Error ? error.message : String(error)),
      )
      .finally(() => {
        const nowMs = performance.now();
        this.#sampled = { step: status.step, atMs: nowMs, tookMs: nowMs - startedAtMs, isLoading: false };
        if (this.#isOpen) this.#draw();
      });
  }
}
