import { setTimeout as delay } from 'node:timers/promises';
import { QueryNotRegisteredError, ServiceError, WorkflowFailedError, type WorkflowHandle } from '@temporalio/client';
import { ApplicationFailure } from '@temporalio/common';
import { type ErrorCode, errorCodes, RatchetError } from '../core/errors.ts';
import type { RunEvent } from '../workflows/control/messages.ts';
import type { RunSummary } from '../workflows/train-run.ts';
import { askStatus } from '../workers/temporal/ask-status.ts';
import { connect, findRun, findTemporal } from '../workers/temporal/client.ts';
import { resultOf } from '../workers/temporal/result-of.ts';
import { rootMessage } from '../workers/temporal/root-message.ts';
import { temporalTrouble } from '../workers/temporal/temporal-trouble.ts';
import { remoteTemporal } from '../workers/temporal/temporal-settings.ts';
import { type Argument, updateRun } from '../workers/temporal/update-run.ts';
import { whyStuck } from '../workers/temporal/why-stuck.ts';
import { requireConnecting, requireText } from './arguments.ts';
import type * as Api from './index.mjs';
import { openStoredRun, type StoredRunReader } from './stored-run.ts';

export type Connected = Awaited<ReturnType<typeof connect>>;

/** The connection that the options name. */
export async function connectTo({ address, namespace, folder = process.cwd() }: Api.Connecting): Promise<Connected> {
  if (address === undefined && namespace !== undefined)
    throw new RatchetError('ConfigInvalid', 'namespace: expected an address beside it, found none.');
  const temporal = address === undefined ? await findTemporal(folder) : remoteTemporal(address);
  return connect(namespace === undefined ? temporal : { ...temporal, namespace });
}

/** Finds a run at a Temporal server. */
export async function openRun(run: string, options: Api.Connecting): Promise<Api.Run> {
  requireText('attach', 'the name of a run', run);
  await requireConnecting(options);
  const connected = await connectTo(options);
  return orClosed(
    connected,
    async ({ client }) => new ConnectedRun(run, await findRun(client, run), connected, options.folder),
  );
}

/** Does what needs a connection, and closes it if that fails. */
export async function orClosed<T>(connected: Connected, work: (connected: Connected) => Promise<T>): Promise<T> {
  try {
    return await work(connected);
  } catch (error) {
    await connected.close();
    throw temporalTrouble(error);
  }
}

/** Events of a run are asked for so often while they are followed. */
const pollMs = 500;
/** A run that has ended is replayed to answer. */
const answerWithinMs = 30_000;

export class ConnectedRun implements Api.Run {
  readonly name: string;
  readonly workflowId: string;
  readonly #handle: WorkflowHandle;
  readonly #connected: Connected;
  readonly #folder: string | undefined;
  /** Aborted by `close`: nobody waits on a connection that is no more. */
  readonly #closing = new AbortController();

  constructor(name: string, handle: WorkflowHandle, connected: Connected, folder: string | undefined) {
    this.#folder = folder;
    this.name = name;
    this.workflowId = handle.workflowId;
    this.#handle = handle;
    this.#connected = connected;
  }

  async status(): Promise<Api.RunStatus> {
    // A run that has just been started does not listen yet.
    for (const until = Date.now() + answerWithinMs; ; await delay(pollMs)) {
      const status = await this.#explained(() => askStatus(this.#handle, answerWithinMs));
      if (status !== null) return status;
      await this.#throwIfFailed();
      const stuck = await this.#explained(() => whyStuck(this.#handle, this.name));
      if (stuck !== null || Date.now() > until) throw noAnswer(this.name, stuck?.text);
    }
  }

  set(settings: Readonly<Record<string, number>>): Promise<string> {
    return this.#update('set', [{ ...settings }]);
  }

  pause(reason = 'asked to'): Promise<string> {
    return this.#update('pause', [reason]);
  }

  resume(): Promise<string> {
    return this.#update('resume', [null]);
  }

  stop(): Promise<string> {
    return this.#update('stop', [null]);
  }

  rewind(step: number): Promise<string> {
    return this.#update('rewind', [step]);
  }

  async result(): Promise<Api.RunResult> {
    try {
      const result = (await this.#explained(() => resultOf(this.#handle, this.#closing.signal))) as RunSummary;
      const { run, step, policyDigest, weights, ledger, effectiveness } = result;
      return { run, step, policyDigest, weights, ledger, ettr: effectiveness.ettr };
    } catch (error) {
      throw error instanceof WorkflowFailedError ? failure(this.name, error) : error;
    }
  }

  async *events({
    after = 0,
    follow = true,
  }: { readonly after?: number; readonly follow?: boolean } = {}): AsyncGenerator<RunEvent, void, undefined> {
    for (let seen = after; ;) {
      // Asked before its events: those of its last moment are then among them.
      const isRunning = follow && (await this.#isRunning());
      for (const event of await this.#eventsAfter(seen, follow)) {
        seen = event.sequence;
        yield event;
      }
      if (!isRunning) return;
      await delay(pollMs);
    }
  }

  async *rollouts(options: Api.RolloutOptions = {}): AsyncGenerator<Api.Rollout, void, undefined> {
    yield* (await this.read()).rollouts(options);
  }

  async read(): Promise<StoredRunReader> {
    const { storeUri, run } = await this.status();
    const [, above, options = ''] = /^([^?]*?)\/?(\?.*)?$/.exec(storeUri)!;
    return openStoredRun(`${above}/${run}${options}`);
  }

  close(): Promise<void> {
    this.#closing.abort(
      new RatchetError(
        'ServerUnavailable',
        `close() was called on the run ${this.name}, which goes on. attach(${JSON.stringify(this.name)}) finds it again.`,
      ),
    );
    return this.#connected.close();
  }

  async #update(update: string, args: Argument): Promise<string> {
    await this.status(); // a run that has just been started does not listen yet
    const projectFolder = this.#folder;
    return this.#explained(() => updateRun(this.#handle, this.name, { update, args, projectFolder }));
  }

  async #eventsAfter(seen: number, isFollowed: boolean): Promise<readonly RunEvent[]> {
    try {
      const ask = () => this.#handle.query<readonly RunEvent[], [number]>('events', seen);
      return await this.#handle.client.withDeadline(Date.now() + answerWithinMs, ask);
    } catch (error) {
      const isYoung = error instanceof QueryNotRegisteredError; // it has not begun to listen, or failed before it did
      if (isYoung) await this.#throwIfFailed();
      this.#closing.signal.throwIfAborted();
      // While it is followed, a server or an orchestrator that restarts is asked again.
      if (isYoung || (isFollowed && error instanceof ServiceError && (await this.#isRunning()))) return [];
      throw temporalTrouble(error);
    }
  }

  async #isRunning(): Promise<boolean> {
    try {
      return (await this.#handle.describe()).status.name === 'RUNNING';
    } catch (error) {
      this.#closing.signal.throwIfAborted();
      if (error instanceof ServiceError) return true; // the server restarts
      throw temporalTrouble(error);
    }
  }

  /** A run whose file is wrong has ended before it could answer. */
  async #throwIfFailed(): Promise<void> {
    if (await this.#isRunning()) return;
    await this.result();
  }

  async #explained<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      this.#closing.signal.throwIfAborted();
      throw temporalTrouble(error);
    }
  }
}

function noAnswer(
  run: string,
  why = 'no orchestrator answers for it (ratchet dev, or ratchet worker --role orchestrator)',
): RatchetError {
  return new RatchetError('ServerUnavailable', `${run} does not say how it is: ${why}.`);
}

/** The run's own code and words, or that someone ended it. */
function failure(run: string, error: WorkflowFailedError): RatchetError {
  let cause: unknown = error.cause;
  while (cause instanceof Error && !(cause instanceof ApplicationFailure && isOurs(cause.type))) cause = cause.cause;
  const code = cause instanceof ApplicationFailure && isOurs(cause.type) ? cause.type : 'Unsupported';
  return new RatchetError(code, `The run ${run} did not finish: ${rootMessage(error)}`, { cause: error });
}

function isOurs(type: string | null | undefined): type is ErrorCode {
  return typeof type === 'string' && type in errorCodes;
}
