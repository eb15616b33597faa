/** A Temporal cluster on loopback: frontend, history, matching and worker as processes of their own, on PostgreSQL. */
import { execFile } from 'node:child_process';
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { Client, Connection } from '@temporalio/client';
import { msToTs } from '@temporalio/common/lib/time.js';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import { startGuard } from '../../workers/stack/guard.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { connectionOptions } from '../../workers/temporal/temporal-connection.ts';
import { remoteTemporal } from '../../workers/temporal/temporal-settings.ts';
import { eventually, until } from '../eventually.ts';
import { type Certificates, makeCertificatesIn } from '../workers/fixtures/tls.ts';
import { GuardedProcess } from './guarded-process.ts';
import { accepts, type Postgres, startPostgres } from './postgres.ts';
import type { ClusterPrograms } from './programs.ts';
import {
  databases,
  dynamicConfig,
  type Limits,
  serverConfig,
  serverProcesses,
  serverServices,
  type ServerConfig,
  type ServerProcess,
} from './server-config.ts';
import { startKeyServer, type TokenKeys } from './tokens.ts';

/** What may be killed: one of the server's processes, or the database below all of them. */
export type ClusterProcess = ServerProcess | 'PostgreSQL';

export interface TestClusterOptions {
  readonly programs: ClusterPrograms;
  readonly namespace?: string;
  /** Whether clients need a certificate. */
  readonly hasTls?: boolean;
  /** Whether clients need a token: `environment` has one that may write in the namespace, and not administer it. */
  readonly hasTokens?: boolean;
  /** Whether an administrator has made Ratchet's search attributes; by default they are there. */
  readonly hasSearchAttributes?: boolean;
  /** Dynamic configuration of the server. */
  readonly limits?: Limits;
}

/** Search attributes that an administrator makes, by the types of the server. */
const searchAttributes = { RatchetRun: 2, RatchetStep: 3, RatchetReward: 4 } as const;

const retentionMs = 86_400_000;

/** Whose clients the frontend lets in, in the folder of its configuration. */
const clientAuthorityFile = 'client-authority.pem';
const limitsFile = 'limits.yaml';

export async function startTestCluster(options: TestClusterOptions): Promise<TestCluster> {
  const cluster = await TestCluster.prepare(options);
  try {
    await cluster.begin();
    return cluster;
  } catch (error) {
    await cluster.stop();
    throw error;
  }
}

export class TestCluster {
  readonly folder: string;
  readonly namespace: string;
  readonly address: string;
  readonly certificates: Certificates | null;
  readonly #options: TestClusterOptions;
  #limits: Limits;
  readonly #guard: ReturnType<typeof startGuard>;
  readonly #postgres: Postgres;
  readonly #metricsPorts: Readonly<Record<ServerProcess, number>>;
  readonly #keys: TokenKeys | null;
  readonly #processes: Readonly<Record<ServerProcess, GuardedProcess>>;

  private constructor(
    options: TestClusterOptions,
    made: {
      readonly folder: string;
      readonly ports: ServerConfig['ports'];
      readonly certificates: Certificates | null;
      readonly keys: TokenKeys | null;
      readonly guard: ReturnType<typeof startGuard>;
      readonly postgres: Postgres;
      readonly metricsPorts: Readonly<Record<ServerProcess, number>>;
    },
  ) {
    const { folder, ports } = made;
    this.#options = options;
    this.#limits = options.limits ?? {};
    this.folder = folder;
    this.namespace = options.namespace ?? 'ratchet';
    this.address = `127.0.0.1:${ports.frontend.grpc}`;
    this.certificates = made.certificates;
    this.#keys = made.keys;
    this.#guard = made.guard;
    this.#postgres = made.postgres;
    this.#metricsPorts = made.metricsPorts;
    const processOf = (name: ServerProcess): GuardedProcess =>
      new GuardedProcess(
        {
          name: `Temporal ${name}`,
          command: options.programs.server,
          args: [
            '--root',
            folder,
            '--config',
            'config',
            '--env',
            name,
            '--allow-no-auth',
            'start',
            ...serverProcesses[name].flatMap((service) => ['--service', service]),
          ],
          folder,
          log: path.join(folder, `${name}.log`),
          isReady: async () => {
            const answering = serverProcesses[name].filter((service) => service !== 'worker'); // which takes no calls
            return (await Promise.all(answering.map((service) => accepts(ports[service].grpc)))).every(Boolean);
          },
        },
        this.#guard,
      );
    this.#processes = {
      frontend: processOf('frontend'),
      history: processOf('history'),
      matching: processOf('matching'),
      worker: processOf('worker'),
    };
  }

  /** The database with its schema, and all files of the server. */
  static async prepare(options: TestClusterOptions): Promise<TestCluster> {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-cluster-'));
    const guard = startGuard();
    let postgres: Postgres | null = null;
    try {
      const ports = {} as Record<(typeof serverServices)[number], { grpc: number; membership: number }>;
      for (const service of serverServices)
        ports[service] = { grpc: await choosePort(0), membership: await choosePort(0) };
      mkdirSync(path.join(folder, 'config'));
      mkdirSync(path.join(folder, 'certificates'));
      const certificates = options.hasTls === true ? makeCertificatesIn(path.join(folder, 'certificates')) : null;
      const keys = options.hasTokens === true ? await startKeyServer() : null;
      postgres = await startPostgres(options.programs.postgres, guard);
      await makeSchemas(options.programs.schemaTool, postgres, folder);
      const dynamicConfigFile = path.join(folder, 'config', limitsFile);
      writeFileSync(dynamicConfigFile, dynamicConfig(options.limits ?? {}));
      const clientAuthority = path.join(folder, 'config', clientAuthorityFile);
      if (certificates) copyFileSync(certificates.authority.certificate, clientAuthority);
      const metricsPorts = {} as Record<ServerProcess, number>;
      for (const name of Object.keys(serverProcesses) as ServerProcess[]) {
        metricsPorts[name] = await choosePort(0);
        const config = serverConfig({
          ports,
          database: postgres,
          dynamicConfigFile,
          metricsPort: metricsPorts[name],
          ...(certificates ? { tls: { server: certificates.server, clientAuthority } } : {}),
          ...(keys ? { keys: keys.url } : {}),
        });
        writeFileSync(path.join(folder, 'config', `${name}.yaml`), config, { mode: 0o600 });
      }
      return new TestCluster(options, { folder, ports, certificates, keys, guard, postgres, metricsPorts });
    } catch (error) {
      guard.close();
      await postgres?.remove();
      await rm(folder, { recursive: true, force: true });
      throw error;
    }
  }

  /** Starts the server's processes, and makes the namespace as an administrator does. */
  async begin(): Promise<void> {
    await Promise.all(Object.values(this.#processes).map((one) => one.start()));
    const { client, close } = await this.#connectAs(this.#administratorsToken);
    try {
      const { namespace } = this;
      const workflowExecutionRetentionPeriod = msToTs(retentionMs);
      await eventually(
        'the cluster makes a namespace',
        () =>
          client.workflowService.registerNamespace({ namespace, workflowExecutionRetentionPeriod }).then(
            () => 'made',
            (error: unknown) => String(error),
          ),
        (answer) => answer === 'made' || /already exists/i.test(answer),
      );
      await until('the namespace is there', () => isAnswered(client.workflowService.describeNamespace({ namespace })));
      await until('workflows can be counted', () => isAnswered(client.workflow.count()));
    } finally {
      await close();
    }
    if (this.#options.hasSearchAttributes !== false) await this.makeSearchAttributes();
  }

  /** What the administrator of the namespace does. */
  async makeSearchAttributes(): Promise<void> {
    const { client, close } = await this.#connectAs(this.#administratorsToken);
    try {
      const { namespace } = this;
      await client.connection.operatorService.addSearchAttributes({ namespace, searchAttributes });
      const query = "RatchetRun = 'none' AND RatchetStep = 0 AND RatchetReward = 0.0";
      await until('runs can be found', () => isAnswered(client.workflow.count(query)));
    } finally {
      await close();
    }
  }

  /** Variables of a user: what somebody who may use the namespace is given by its administrator. */
  get environment(): Readonly<Record<string, string>> {
    return this.#environmentWith(this.#keys?.token({ namespace: this.namespace, role: 'write' }));
  }

  #environmentWith(token: string | undefined): Record<string, string> {
    return {
      TEMPORAL_ADDRESS: this.address,
      TEMPORAL_NAMESPACE: this.namespace,
      ...(this.certificates
        ? {
            TEMPORAL_TLS_SERVER_CA_CERT_PATH: this.certificates.authority.certificate,
            TEMPORAL_TLS_CLIENT_CERT_PATH: this.certificates.client.certificate,
            TEMPORAL_TLS_CLIENT_KEY_PATH: this.certificates.client.key,
          }
        : {}),
      ...(token === undefined ? {} : { TEMPORAL_API_KEY: token }),
    };
  }

  get #administratorsToken(): string | undefined {
    return this.#keys?.token({ namespace: 'temporal-system', role: 'admin' });
  }

  /** A client of a user's. */
  connect(): Promise<{ client: Client & { connection: Connection }; close: () => Promise<void> }> {
    return this.#connectAs(this.environment['TEMPORAL_API_KEY']);
  }

  async #connectAs(token: string | undefined) {
    const settings = remoteTemporal(this.address, this.#environmentWith(token));
    const connection = await Connection.connect(connectionOptions(settings));
    const client = new Client({ connection, namespace: this.namespace, identity: `test ${process.pid}` });
    return { client: client as Client & { connection: Connection }, close: () => connection.close() };
  }

  /** SIGKILL; resolves when the process has ended. */
  kill(name: ClusterProcess): Promise<void> {
    return this.#processOf(name).kill();
  }

  /** Starts a killed process again, in the same place; resolves when it serves. */
  restart(name: ClusterProcess): Promise<void> {
    return this.#processOf(name).start();
  }

  #processOf(name: ClusterProcess): GuardedProcess {
    return name === 'PostgreSQL' ? this.#postgres.process : this.#processes[name];
  }

  pid(name: ClusterProcess): number | null {
    return this.#processOf(name).pid;
  }

  /** The end of a process's log. */
  said(name: ClusterProcess): string {
    return this.#processOf(name).said;
  }

  /** Sum of a counter of one process over those of its series whose labels match, such as `operation="StartWorkflowExecution"`. */
  async counted(name: ServerProcess, counter: string, ...labels: readonly string[]): Promise<number> {
    const text = await (await fetch(`http://127.0.0.1:${this.#metricsPorts[name]}/metrics`)).text();
    const lines = text.split('\n').filter((line) => line.startsWith(`${counter}{`));
    const matching = lines.filter((line) => labels.every((label) => line.includes(label)));
    return matching.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
  }

  /** Changes some limits, which the server knows within `rereadSeconds.dynamicConfig`. */
  setLimits(changed: Limits): void {
    this.#limits = { ...this.#limits, ...changed };
    writeFileSync(path.join(this.folder, 'config', limitsFile), dynamicConfig(this.#limits));
  }

  /** The frontend takes clients of another authority from now on, once it has reread its files; new connections of others are refused. */
  trustClientsOf(authority: string): void {
    if (this.certificates === null) throw new Error('this cluster has no TLS');
    copyFileSync(authority, path.join(this.folder, 'config', clientAuthorityFile));
  }

  async stop(): Promise<void> {
    const running = [...Object.values(this.#processes), this.#postgres.process].filter(({ pid }) => pid !== null);
    for (const one of running) await one.kill();
    this.#guard.close();
    await this.#keys?.close();
    await this.#postgres.remove();
    await rm(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

async function makeSchemas(tool: string, { port, user, password }: Postgres, folder: string): Promise<void> {
  for (const [kind, database] of Object.entries({ temporal: databases.default, visibility: databases.visibility })) {
    const at = ['--plugin', 'postgres12', '--endpoint', '127.0.0.1', '--port', String(port), '--user', user];
    for (const command of [
      ['create-database'],
      ['setup-schema', '--version', '0.0'],
      ['update-schema', '--schema-name', `postgresql/v12/${kind}`],
    ])
      await promisify(execFile)(tool, [...at, '--database', database, ...command], {
        cwd: folder,
        env: { ...selectEnvironment(environmentForAll, process.env), SQL_PASSWORD: password },
      });
  }
}

function isAnswered(asked: Promise<unknown>): Promise<boolean> {
  return asked.then(
    () => true,
    () => false,
  );
}
