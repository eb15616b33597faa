import type { Server } from 'node:http';
import { Client, Connection } from '@temporalio/client';
import { exposition } from '../../backends/metrics/exposition.ts';
import { RatchetError } from '../../core/errors.ts';
import type { ServerKey } from '../../engine/index.ts';
import { makeSecret, takeSecret } from '../../host/project-secret.ts';
import type { Credentials } from '../temporal/credentials.ts';
import { FleetWatch } from './fleet-watch.ts';
import { MetricsFollower } from './metrics-follower.ts';
import { startMetricsServer, defaultMetricsPort } from './metrics-server.ts';
import { dataConverterFor } from '../temporal/payload-codec.ts';
import { choosePort } from '../stack/ports.ts';
import { connectionOptions, notConnected } from '../temporal/temporal-connection.ts';
import { watchCredentials } from '../temporal/watch-credentials.ts';
import type { TemporalSettings } from '../temporal/temporal-settings.ts';

/**
 * The process that sends metrics: TensorBoard's files, W&B, and `/metrics` for Prometheus at RATCHET_METRICS_HOST and
 * _PORT. `/metrics` requires RATCHET_METRICS_KEY; on the loopback, without that, the project's secret. Ends with
 * SIGTERM or SIGINT.
 */
export async function followMetrics(
  settings: Credentials & { readonly say: (line: string) => void; readonly environment?: NodeJS.ProcessEnv },
): Promise<void> {
  const { payloadKeys, say, environment = process.env } = settings;
  const ending = new AbortController();
  process.on('SIGTERM', () => ending.abort()).on('SIGINT', () => ending.abort());
  let client = await connectAs(settings.temporal);
  const log = (line: string): void => say(`metrics: ${line}`);
  const follower = new MetricsFollower({ client: () => client, log, signal: ending.signal });
  const fleet = new FleetWatch({ client: () => client, log });
  const take = async (changed: TemporalSettings): Promise<void> => {
    const before = client;
    client = await connectAs(changed);
    setTimeout(() => void before.connection.close(), closeLaterMs).unref();
  };
  watchCredentials(settings, take, { say: log });
  const host = environment['RATCHET_METRICS_HOST'] || '127.0.0.1';
  const chosen = environment['RATCHET_METRICS_KEY'] || null;
  delete environment['RATCHET_METRICS_KEY'];
  // A port in use, or a missing key, must not stop the sinks.
  const server = await serve().catch((error: unknown) => {
    log(`/metrics is not served: ${error instanceof Error ? error.message : String(error)}`);
    return null;
  });
  await Promise.all([follower.run(), fleet.run(ending.signal)]);
  server?.close();
  server?.closeAllConnections();
  await client.connection.close();

  async function connectAs(to: TemporalSettings): Promise<Client> {
    const connection = await Connection.connect(connectionOptions(to)).catch(async (cause: unknown) => {
      throw await notConnected(to, cause);
    });
    return new Client({ connection, namespace: to.namespace, dataConverter: dataConverterFor(payloadKeys) });
  }

  async function serve(): Promise<Server> {
    const key: ServerKey =
      chosen === null
        ? { kind: 'secret', value: takeSecret(environment) ?? makeSecret(process.cwd(), environment) }
        : { kind: 'chosen', value: chosen, variable: 'RATCHET_METRICS_KEY' };
    const port = await portFor(environment['RATCHET_METRICS_PORT']);
    const started = await startMetricsServer({
      host,
      port,
      key,
      text: () => exposition([...fleet.samples(), ...follower.samples()]),
      whyNotReady: () => follower.whyNotReady,
    });
    say(`ready at http://${host}:${port}/metrics`);
    return started;
  }
}

/** Requests over a replaced connection have been answered by then. */
const closeLaterMs = 60_000;

async function portFor(written: string | undefined): Promise<number> {
  if (written === undefined || written === '') return choosePort(defaultMetricsPort);
  const port = Number(written);
  if (Number.isInteger(port) && port > 0 && port < 65_536) return port;
  throw new RatchetError(
    'ConfigInvalid',
    `RATCHET_METRICS_PORT: expected a port from 1 to 65535, got ${JSON.stringify(written)}.`,
  );
}
