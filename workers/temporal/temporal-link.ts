import { isDeepStrictEqual } from 'node:util';
import { Client } from '@temporalio/client';
import { NativeConnection, type Worker } from '@temporalio/worker';
import type { Credentials } from './credentials.ts';
import { dataConverterFor } from './payload-codec.ts';
import { connectionOptions, notConnected } from './temporal-connection.ts';
import type { TemporalSettings } from './temporal-settings.ts';

/** Connection to Temporal of a process that runs for months: follows renewed keys and certificates. */
export class TemporalLink {
  readonly #credentials: Credentials;
  readonly #workers: Worker[] = [];
  #settings: TemporalSettings;
  #connection: NativeConnection;
  #client: Client | null = null;

  private constructor(credentials: Credentials, connection: NativeConnection) {
    this.#credentials = credentials;
    this.#settings = credentials.temporal;
    this.#connection = connection;
  }

  static async open(credentials: Credentials): Promise<TemporalLink> {
    return new TemporalLink(credentials, await connectWorker(credentials.temporal));
  }

  get connection(): NativeConnection {
    return this.#connection;
  }

  /** Client of the current connection; callers must not keep it. */
  get client(): Client {
    const { temporal, payloadKeys } = this.#credentials;
    return (this.#client ??= new Client({
      connection: this.#connection,
      namespace: temporal.namespace,
      dataConverter: dataConverterFor(payloadKeys),
    }));
  }

  /** Adds workers that poll over this connection; a new connection replaces it for them, too. */
  add(...workers: readonly Worker[]): void {
    this.#workers.push(...workers);
  }

  /** Switches to a changed key and certificates. */
  async renew(settings: TemporalSettings): Promise<void> {
    if (!isDeepStrictEqual(settings.tls, this.#settings.tls)) {
      const before = this.#connection;
      this.#connection = await connectWorker(settings);
      this.#client = null;
      for (const worker of this.#workers) if (!hasEnded(worker)) worker.connection = this.#connection;
      forward(before, () => this.#connection);
      this.#settings = settings;
      // Calls and polls under way keep it open until they end; workers keep the one that they were made with, unused.
      await before.close();
    } else if (settings.apiKey !== null && settings.apiKey !== this.#settings.apiKey) {
      await this.#connection.setApiKey(settings.apiKey);
    }
    this.#settings = settings;
  }
}

/** A worker that has ended, before others of its process, holds no connection any more. */
function hasEnded(worker: Worker): boolean {
  return ['STOPPED', 'FAILED'].includes(worker.getState());
}

const services = ['workflowService', 'operatorService', 'healthService'] as const;

/**
 * Sends later calls over another connection: an activity that began before keeps the client that it began with, and a
 * list asks for its next page.
 */
function forward(before: NativeConnection, current: () => NativeConnection): void {
  for (const name of services) before[name].rpcImpl = (...call) => current()[name].rpcImpl?.(...call);
  before.withDeadline = (deadline, work) => current().withDeadline(deadline, work);
  before.withMetadata = (metadata, work) => current().withMetadata(metadata, work);
  before.withAbortSignal = (signal, work) => current().withAbortSignal(signal, work);
}

/** The connection of a worker. */
export async function connectWorker(settings: TemporalSettings): Promise<NativeConnection> {
  try {
    return await NativeConnection.connect(connectionOptions(settings));
  } catch (cause) {
    throw await notConnected(settings, cause);
  }
}
