import { mkdirSync } from 'node:fs';
import { delimiter, join, resolve } from 'node:path';
import {
  environmentForAll,
  environmentForRoles,
  selectEnvironment,
  trustedRootsVariable,
  withoutVariables,
} from '../../core/child-environment.ts';
import { isSecretVariable } from '../../config/toml/secrets.ts';
import {
  endLeftoverServer,
  isServing,
  prepareDatabase,
  recordServer,
  serverArguments,
  serverFiles,
  defaultPorts,
} from '../temporal/dev-server.ts';
import { startGuard } from './guard.ts';
import { choosePort } from './ports.ts';
import { deathNotice } from './death-notice.ts';
import { holdProject } from './project-lock.ts';
import { secretsOfProject, splitSecrets } from './secrets-pipe.ts';
import { type AliveWhile, SupervisedProcess, type ReadyWhen, type Surroundings } from './supervised-process.ts';
import { ensureTemporalCli } from '../temporal/temporal-cli.ts';
import { refuseBadCredentials } from '../temporal/refuse-bad-credentials.ts';
import { hiddenLoopback, openUiFront, type UiFront } from '../temporal/ui-front.ts';
import { builtProgram } from '../built.mjs';

/** One process that the stack keeps alive. */
export interface Role {
  /** Name in messages, `rollout worker`; also the name of its log file. */
  readonly name: string;
  /** Node by default. */
  readonly command?: string;
  readonly args: readonly string[];
  /** Further arguments if the Temporal server is the stack's own, where no other stack works. */
  readonly argsAtOwnServer?: readonly string[];
  /** Lines with this prefix are also printed for the user. */
  readonly aloud?: string;
  /** Variables for this role only, in addition to our documented selection (`child-environment.ts`). */
  readonly env?: Readonly<Record<string, string>>;
  /** Names of our own variables that this role needs besides (`OPENAI_API_KEY`, `AWS_*`), and names it must not see. */
  readonly passEnv?: readonly string[];
  readonly dropEnv?: readonly string[];
  readonly ready?: ReadyWhen;
  readonly readyTimeoutMs?: number;
  readonly startAttemptsMax?: number;
  /** How long a process must have been ready for its next start to count as the first again. */
  readonly steadyMs?: number;
  /** Whether it takes secrets from its stdin (`take-secrets.ts`), so that they are not in its environment. */
  readonly takesSecrets?: boolean;
  /** Check after it was ready: a process that is alive but stuck is restarted. */
  readonly alive?: AliveWhile;
  /** The role of a worker: Temporal is told at once when its process dies. */
  readonly worker?: Parameters<typeof deathNotice>[0];
}

/** Folders and addresses of a stack that its roles need. */
interface StackPlace {
  readonly projectFolder: string;
  /** `.ratchet` in the project folder: the server's database and all logs. */
  readonly stateFolder: string;
  readonly logFolder: string;
  readonly temporalAddress: string;
  /** Null when the server is not ours. */
  readonly uiUrl: string | null;
}

export interface StackOptions {
  readonly projectFolder: string;
  readonly roles: readonly Role[] | ((place: StackPlace) => readonly Role[] | Promise<readonly Role[]>);
  /** Prints a line for the user. */
  readonly log: (line: string) => void;
  /** Called once no other stack can start here any more, before anything is started. */
  readonly onHold?: () => void;
  /** Given to commands that attach. */
  readonly policyUrl?: string;
  /** Given to commands that attach: whether no role trains or serves the policy. */
  readonly playsOnly?: boolean;
  /** Ends a start that is under way; the running stack is ended by `stop`. */
  readonly signal?: AbortSignal;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
  /** Grace of the roles; stopping the stack waits that much longer for them. */
  readonly graceMs?: number | undefined;
  /** Dynamic configuration of our own server, by key, values as JSON. */
  readonly serverSettings?: Readonly<Record<string, string>>;
  readonly temporalCli?: typeof ensureTemporalCli;
}

export interface Stack extends StackPlace {
  /** Number of restarts of each process, by name. */
  restarts(): Readonly<Record<string, number>>;
  /** Process ids by name; null while it is being restarted. */
  pids(): Readonly<Record<string, number | null>>;
  /** Ends everything within 5 s (plus the grace, if any), workers before the server. Idempotent. */
  stop(): Promise<void>;
}

/** How long roles, and then the server, have between SIGTERM and SIGKILL: well under 5 s together, also on a busy machine. */
const graceMs = { role: 2_000, server: 1_500 };

/** A port that was free when we looked may be taken when the server binds it. */
const serverStartsMax = 3;

/**
 * The embedded stack of one project folder: a Temporal server (unless TEMPORAL_ADDRESS names one) and the given roles,
 * kept alive until `stop`. Resolves when all are ready. None of them outlives this process, however it ends.
 */
export async function startStack(options: StackOptions): Promise<Stack> {
  const { log } = options;
  const environment = { ...(options.environment ?? process.env) };
  // Children get these variables by the pipe instead of from this process's environment. Imported lazily: loading takes
  // long, and some commands start nothing.
  const { hideSecrets } = await import('../../host/hide-secrets.ts');
  hideSecrets(Object.keys(process.env).filter((name) => isSecretVariable(name, process.env[name])));
  refuseBadCredentials(environment);
  await builtProgram(); // once, and not by each of the processes at the same time
  const hold = await holdProject(options.projectFolder);
  options.onHold?.();
  const folders = { projectFolder: hold.projectFolder, stateFolder: join(hold.projectFolder, '.ratchet') };
  const logFolder = join(folders.stateFolder, 'logs');
  const guard = startGuard();
  const surroundings: Surroundings = { guard, logFolder, log };
  const roles: SupervisedProcess[] = [];
  const servers: SupervisedProcess[] = [];

  let front: UiFront | null = null;

  const end = async () => {
    front?.close();
    await Promise.all(roles.map((role) => role.stop(graceMs.role + (options.graceMs ?? 0))));
    await Promise.all(servers.map((server) => server.stop(graceMs.server)));
    guard.close();
    hold.release();
  };
  let ending: Promise<void> | null = null;
  const stop = () => (ending ??= end());
  const onAbort = () => void stop();
  options.signal?.addEventListener('abort', onAbort, { once: true });

  try {
    options.signal?.throwIfAborted();
    mkdirSync(logFolder, { recursive: true, mode: 0o700 });
    if (options.policyUrl !== undefined) {
      const { ensureEngineLibrary } = await import('../install/engine-library.ts');
      await ensureEngineLibrary(log); // built once here, and not by each role
    }
    const given = environment['TEMPORAL_ADDRESS'];
    const own = given ? null : await openServer({ options, environment, servers, place: folders, surroundings });
    front = own?.front ?? null;
    const server = { temporalAddress: own?.temporalAddress ?? given!, uiUrl: own?.uiUrl ?? null };
    const place: StackPlace = { ...folders, logFolder, ...server };
    const handed = secretsOfProject(folders.projectFolder, environment);
    hold.tell({ ...server, policyUrl: options.policyUrl ?? null, playsOnly: options.playsOnly === true });
    const wanted = typeof options.roles === 'function' ? await options.roles(place) : options.roles;
    options.signal?.throwIfAborted();
    roles.push(...wanted.map((role) => superviseRole(role, { place, environment, handed, surroundings })));
    await Promise.all(roles.map((role) => role.start()));
    options.signal?.throwIfAborted();
    hold.tell({ state: 'ready' });
    const all = [...servers, ...roles];
    return {
      ...place,
      restarts: () => Object.fromEntries(all.map((one) => [one.spec.name, one.restarts])),
      pids: () => Object.fromEntries(all.map((one) => [one.spec.name, one.pid])),
      stop,
    };
  } catch (error) {
    await stop();
    throw options.signal?.aborted === true ? options.signal.reason : error;
  } finally {
    options.signal?.removeEventListener('abort', onAbort);
  }
}

/**
 * This project's own server, on free ports; it is among `servers` before it is ready, so that it is ended whatever
 * happens.
 */
async function openServer({
  options,
  environment,
  servers,
  place: { projectFolder, stateFolder },
  surroundings,
}: {
  readonly options: StackOptions;
  readonly environment: NodeJS.ProcessEnv;
  readonly servers: SupervisedProcess[];
  readonly place: { readonly projectFolder: string; readonly stateFolder: string };
  readonly surroundings: Surroundings;
}): Promise<{ temporalAddress: string; uiUrl: string; front: UiFront }> {
  const { log } = options;
  const cli = await (options.temporalCli ?? ensureTemporalCli)({ log, projectFolder });
  await endLeftoverServer(stateFolder, log);
  const { isFair } = prepareDatabase(stateFolder, cli.serverVersion, log);
  for (let start = 1; ; start += 1) {
    options.signal?.throwIfAborted();
    const ports = { grpc: await choosePort(defaultPorts.grpc), ui: await choosePort(defaultPorts.ui) };
    const temporalAddress = `127.0.0.1:${ports.grpc}`;
    const ui = { host: hiddenLoopback(), port: await choosePort(0) };
    const server = superviseServer({
      path: cli.path,
      grpc: ports.grpc,
      ui,
      isFair,
      address: temporalAddress,
      options,
      environment,
      stateFolder,
      projectFolder,
      surroundings,
    });
    servers.push(server);
    try {
      await server.start();
      const front = await openUiFront(ports.ui, ui);
      return { temporalAddress, uiUrl: `http://127.0.0.1:${ports.ui}`, front };
    } catch (error) {
      const isFrontTaken = (error as NodeJS.ErrnoException).code === 'EADDRINUSE';
      const portTaken = isFrontTaken || server.lastLines.some((line) => /already in use|address in use/i.test(line));
      if (!portTaken || start === serverStartsMax) throw error;
      servers.splice(servers.indexOf(server), 1);
      await server.stop(graceMs.server);
    }
  }
}

interface OwnServer {
  /** Path of the Temporal CLI. */
  readonly path: string;
  readonly grpc: number;
  readonly ui: { readonly host: string; readonly port: number };
  readonly isFair: boolean;
  readonly address: string;
  readonly options: Pick<StackOptions, 'serverSettings'>;
  readonly environment: NodeJS.ProcessEnv;
  readonly stateFolder: string;
  readonly projectFolder: string;
  readonly surroundings: Surroundings;
}

/** A Temporal server of this folder, which is ready when it answers itself. */
function superviseServer({
  path,
  grpc,
  ui,
  isFair,
  address,
  options,
  environment,
  stateFolder,
  projectFolder,
  surroundings,
}: OwnServer): SupervisedProcess {
  const check = async () => {
    const pid = server.pid;
    if (pid === null) return false;
    recordServer(stateFolder, pid);
    // Still the same process after the answer: so it was ours that answered, not a stranger on a port ours failed to get.
    return (await isServing(address)) && pid === server.pid;
  };
  const server: SupervisedProcess = new SupervisedProcess(
    {
      name: 'Temporal server',
      command: path,
      args: serverArguments({ grpc, ui: ui.port }, serverFiles(stateFolder).database, {
        settings: options.serverSettings,
        uiHost: ui.host,
        isFair,
      }),
      env: selectEnvironment(environmentForAll, environment),
      folder: projectFolder,
      rank: 'server',
      ready: { check },
      startAttemptsMax: 1,
    },
    surroundings,
  );
  return server;
}

/**
 * Our own server authenticates no client, so its workers take configs and code only from these folders
 * (`host/trusted-files.ts`).
 */
function trustedRoots(projectFolder: string, environment: Readonly<NodeJS.ProcessEnv>): string {
  const further = (environment['RATCHET_CODE_ROOTS'] ?? '').split(delimiter).filter((root) => root !== '');
  return [projectFolder, ...further.map((root) => resolve(projectFolder, root))].join(delimiter);
}

function superviseRole(
  role: Role,
  {
    place,
    environment,
    handed,
    surroundings,
  }: {
    readonly place: StackPlace;
    readonly environment: Readonly<NodeJS.ProcessEnv>;
    /** The project's secret. Restarts get the same one, even when its file is gone. */
    readonly handed: Readonly<Record<string, string>>;
    readonly surroundings: Surroundings;
  },
): SupervisedProcess {
  const notice =
    role.worker === undefined ? null : deathNotice(role.worker, { ...place, environment, log: surroundings.log });
  const names = [...environmentForRoles, ...(role.passEnv ?? [])];
  // Variables for a server elsewhere do not apply to our own.
  const dropped = [...(role.dropEnv ?? []), ...(place.uiUrl === null ? [] : ['TEMPORAL_*'])];
  const kept = withoutVariables(dropped, selectEnvironment(names, environment));
  const env: Record<string, string> = {
    ...kept,
    TEMPORAL_ADDRESS: place.temporalAddress,
    ...(place.uiUrl === null || environment['RATCHET_ALONE'] === '1'
      ? {}
      : { [trustedRootsVariable]: trustedRoots(place.projectFolder, environment) }),
    ...role.env,
    ...notice?.env,
  };
  const { open, secrets } =
    role.takesSecrets === true ? splitSecrets({ ...env, ...handed }) : { open: env, secrets: undefined };
  return new SupervisedProcess(
    {
      name: role.name,
      command: role.command ?? process.execPath,
      args: [...role.args, ...(place.uiUrl === null ? [] : (role.argsAtOwnServer ?? []))],
      aloud: role.aloud,
      env: open,
      secrets,
      folder: place.projectFolder,
      rank: 'role',
      ready: role.ready,
      readyTimeoutMs: role.readyTimeoutMs,
      startAttemptsMax: role.startAttemptsMax,
      steadyMs: role.steadyMs,
      alive: role.alive,
      onDeath: notice?.onDeath,
    },
    surroundings,
  );
}
