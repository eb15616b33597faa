import { isDeepStrictEqual } from 'node:util';
import { Client } from '@temporalio/client';
import { NativeConnection, type Worker } from '@temporalio/worker';
import type { Credentials } from './credentials.ts';
import { dataConverterFor } from './payload-codec.ts';
import { connectionOptions, notConnected } from './temporal-connection.ts';
import type { TemporalSettings } from './temporal-settings.ts';

/** The way to Temporal of a process that goes on for months: with the key and the certificates that there are now. */
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

  /** Of the connection as it is now: not to be kept. */
  get client(): Client {
    const { temporal, payloadKeys } = this.#credentials;
    return (this.#client ??= new Client({
      connection: this.#connection,
      namespace: temporal.namespace,
      dataConverter: dataConverterFor(payloadKeys),
    }));
  }

  /** Workers whose polls go over it: they get a new connection with it. */
  add(...workers: readonly Worker[]): void {
    this.#workers.push(...workers);
  }

  /** Takes a key, and certificates, that are others than before. */
  async renew(settings: TemporalSettings): Promise<void> {
    if (!isDeepStrictEqual(settings.tls, this.#settings.tls)) {
      // The one before is not closed: what was asked over it is answered over it.
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
