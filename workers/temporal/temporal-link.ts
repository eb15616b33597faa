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
      // The previous connection stays open for requests under way.
      this.#connection = await connectWorker(settings);
      this.#client = null;
      for (const worker of this.#workers) worker.connection = this.#connection;
    } else if (settings.apiKey !== null && settings.apiKey !== this.#settings.apiKey) {
      await this.#connection.setApiKey(settings.apiKey);
    }
    this.#settings = settings;
  }
}

/** The connection of a worker. */
export async function connectWorker(settings: TemporalSettings): Promise<NativeConnection> {
  try {
    return await NativeConnection.connect(connectionOptions(settings));
  } catch (cause) {
    throw await notConnected(settings, cause);
  }
}
