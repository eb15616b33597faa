/** Configuration of a Temporal server whose services are processes of their own, as text for its files. */
import type { KeyPair } from '../workers/fixtures/tls.ts';

/** Its processes: the worker has the internal frontend with it, over which the server's own workflows come without a user's credentials. */
export const serverProcesses = {
  frontend: ['frontend'],
  history: ['history'],
  matching: ['matching'],
  worker: ['worker', 'internal-frontend'],
} as const;
export type ServerProcess = keyof typeof serverProcesses;
type ServerService = (typeof serverProcesses)[ServerProcess][number];

export const serverServices = Object.values(serverProcesses).flat();

export interface ServicePorts {
  readonly grpc: number;
  /** Over which the services find each other. */
  readonly membership: number;
}

export interface ServerConfig {
  readonly ports: Readonly<Record<ServerService, ServicePorts>>;
  readonly database: { readonly port: number; readonly user: string; readonly password: string };
  /** mTLS of the frontend: its certificate, and who signs those of its clients. */
  readonly tls?: { readonly server: KeyPair; readonly clientAuthority: string };
  /** Address of the JSON Web Keys that tokens are signed with; missing: everyone may do everything. */
  readonly keys?: string;
  readonly dynamicConfigFile: string;
  /** Where this process tells its metrics, in the format of Prometheus. */
  readonly metricsPort: number;
}

export const databases = { default: 'temporal', visibility: 'temporal_visibility' } as const;

/** The server rereads its dynamic configuration at this interval, the shortest that it takes; certificates more often. */
export const rereadSeconds = { dynamicConfig: 5, certificates: 1 };

/** For the config file of one of its processes: YAML, of which JSON is a part. */
export function serverConfig({ ports, database, tls, keys, dynamicConfigFile, metricsPort }: ServerConfig): string {
  const datastore = (databaseName: string, maxConns: number) => ({
    sql: {
      pluginName: 'postgres12',
      databaseName,
      connectAddr: `127.0.0.1:${database.port}`,
      connectProtocol: 'tcp',
      user: database.user,
      password: database.password,
      maxConns,
      maxIdleConns: maxConns,
      maxConnLifetime: '1h',
    },
  });
  const services = Object.fromEntries(
    serverServices.map((service) => {
      const { grpc, membership } = ports[service];
      return [service, { rpc: { grpcPort: grpc, membershipPort: membership, bindOnIP: '127.0.0.1' } }];
    }),
  );
  const config = {
    log: { stdout: true, level: 'warn' },
    persistence: {
      numHistoryShards: 4,
      defaultStore: 'default',
      visibilityStore: 'visibility',
      datastores: { default: datastore(databases.default, 20), visibility: datastore(databases.visibility, 10) },
    },
    global: {
      membership: { maxJoinDuration: '30s', broadcastAddress: '127.0.0.1' },
      metrics: { prometheus: { timerType: 'histogram', listenAddress: `127.0.0.1:${metricsPort}` } },
      ...(tls ? { tls: frontendTls(tls) } : {}),
      ...(keys === undefined
        ? {}
        : {
            authorization: {
              jwtKeyProvider: { keySourceURIs: [keys], refreshInterval: '1m' },
              authorizer: 'default',
              claimMapper: 'default',
            },
          }),
    },
    services,
    clusterMetadata: {
      enableGlobalNamespace: false,
      failoverVersionIncrement: 10,
      masterClusterName: 'active',
      currentClusterName: 'active',
      clusterInformation: {
        active: {
          enabled: true,
          initialFailoverVersion: 1,
          rpcName: 'frontend',
          rpcAddress: `127.0.0.1:${ports.frontend.grpc}`,
        },
      },
    },
    dcRedirectionPolicy: { policy: 'noop' },
    dynamicConfigClient: { filepath: dynamicConfigFile, pollInterval: `${rereadSeconds.dynamicConfig}s` },
  };
  return `${JSON.stringify(config, null, 2)}\n`;
}

function frontendTls({ server, clientAuthority }: NonNullable<ServerConfig['tls']>) {
  return {
    refreshInterval: `${rereadSeconds.certificates}s`,
    frontend: {
      server: {
        certFile: server.certificate,
        keyFile: server.key,
        requireClientAuth: true,
        clientCaFiles: [clientAuthority],
      },
    },
  };
}

/** Values of the dynamic configuration by their keys, for all namespaces or for one. */
export type Limits = Readonly<Record<string, string | number | boolean>>;

export function dynamicConfig(limits: Limits): string {
  const entries = Object.entries(limits).map(([key, value]) => [key, [{ value, constraints: {} }]]);
  return `${JSON.stringify(Object.fromEntries(entries), null, 2)}\n`;
}
