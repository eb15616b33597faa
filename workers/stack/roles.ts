import { fileURLToPath } from 'node:url';
import {
  environmentForPython,
  environmentForStore,
  environmentForVerifiers,
  mlflowVariables,
  nodeVariables,
  notifyVariables,
  otlpVariables,
  temporalSecrets,
  tinkerVariables,
  variablesOfEnvironments,
  wandbVariables,
} from '../../core/child-environment.ts';
import { workerRoles, type WorkerRole } from '../../core/names.ts';
import { argumentsOfPool, type JoinedPool } from '../roles/joined-pool.ts';
import { choosePort } from './ports.ts';
import type { Role } from './supervisor.ts';
import type { StartedVllm } from './vllm-role.ts';

export { readJoinedPool } from '../roles/joined-pool.ts';

/** Default port of the policy server; another is chosen when it is taken. */
const defaultPolicyPort = 8420;

export interface RoleOptions {
  /** Weights are only loaded from below these folders. */
  readonly weightRoots: readonly string[];
  readonly policyPort: number;
  /** Whether a process follows metrics for TensorBoard, W&B and Prometheus; true by default. */
  readonly followsMetrics?: boolean;
  /** Port of `/metrics`; by default the usual one, or another when that is taken. */
  readonly metricsPort?: number | undefined;
  /** Variables that workers see besides the default ones: keys that a run file names. */
  readonly workersSee?: readonly string[];
  /** The vLLM started beside them. */
  readonly vllm?: StartedVllm | null;
  /** GPUs that the trainers see (CUDA_VISIBLE_DEVICES); all when missing. */
  readonly trainerGpus?: readonly number[] | null;
  /** Processes of a role; one by default. */
  readonly count?: Partial<Readonly<Record<WorkerRole, number>>>;
  /** Seconds that work under way may take at shutdown; hardly any by default. */
  readonly graceS?: number | undefined;
  /** Starts only what generation needs: other servers have the model, and nothing is trained. */
  readonly playsOnly?: boolean;
  /** The pool that GPU workers and rollout workers join. */
  readonly joined?: JoinedPool | undefined;
}

/**
 * All roles of a run on one machine: the policy server, one worker of each role, and the process that follows metrics.
 */
export function localRoles({
  weightRoots,
  policyPort,
  followsMetrics = true,
  metricsPort,
  workersSee = [],
  vllm = null,
  trainerGpus = null,
  count = {},
  graceS,
  playsOnly = false,
  joined,
}: RoleOptions): Role[] {
  const policyUrl = policyUrlAt(policyPort);
  const policyServer: Role = {
    name: 'policy server',
    args: [
      ...programArguments('policy-server'),
      '--host',
      '127.0.0.1',
      '--port',
      String(policyPort),
      '--threads',
      '1',
      ...weightRoots.flatMap((root) => ['--allow-root', root]),
    ],
    dropEnv: temporalSecrets,
    takesSecrets: true,
    // Another program that answers at its port is no sign that it is ready.
    ready: { line: 'policy server listening on' },
  };
  const wanted = workerRoles.filter((role) => !playsOnly || role !== 'train');
  const workers = wanted.flatMap((role): Role[] =>
    Array.from({ length: count[role] ?? 1 }, (_, i) => ({
      name: i === 0 ? `${role} worker` : `${role} worker ${i + 1}`,
      args: [
        ...programArguments('worker'),
        '--role',
        role,
        ...(graceS === undefined ? [] : ['--grace', String(graceS)]),
        ...(role === 'orchestrator' ? [] : argumentsOfPool(joined)),
      ],
      takesSecrets: true,
      worker: role,
      ...(role === 'orchestrator' && i === 0 ? { argsAtOwnServer: ['--take-over'], aloud: 'upgrade: ' } : {}),
      passEnv: [
        ...environmentForStore,
        ...tinkerVariables,
        ...workersSee,
        ...environmentForVerifiers,
        ...variablesOfEnvironments(process.env),
        ...(role === 'train' ? nodeVariables : []),
      ],
      // The orchestrator reads datasets only.
      env: {
        // Without our own policy server, that address could belong to a stranger.
        RATCHET_POLICY_URL: playsOnly ? '' : policyUrl,
        ...(vllm ? { RATCHET_VLLM_URL: vllm.url } : {}),
        ...(role === 'orchestrator' ? { RATCHET_PYTHON_CHILDREN: '1' } : {}),
        ...(role === 'train' && trainerGpus ? { CUDA_VISIBLE_DEVICES: trainerGpus.join(',') } : {}),
      },
      ready: { line: `${role} worker ready` },
    })),
  );
  const metrics: Role = {
    name: 'metrics worker',
    args: [...programArguments('worker'), '--role', 'metrics'],
    takesSecrets: true,
    aloud: 'metrics: ',
    passEnv: [
      ...environmentForStore,
      ...wandbVariables,
      ...mlflowVariables,
      ...otlpVariables,
      ...notifyVariables,
      ...environmentForPython,
    ],
    env: metricsPort === undefined ? {} : { RATCHET_METRICS_PORT: String(metricsPort) },
  };
  if (playsOnly) return workers;
  return [policyServer, ...(vllm ? [vllm.role] : []), ...workers, ...(followsMetrics ? [metrics] : [])];
}

export function policyUrlAt(port: number): string {
  return `http://127.0.0.1:${port}`;
}

export async function choosePolicyPort(): Promise<number> {
  return choosePort(defaultPolicyPort);
}

/** Arguments of node for one of our programs, by its name in `built.mjs`. */
export function programArguments(name: 'worker' | 'policy-server'): string[] {
  return [fileURLToPath(new URL('../program.mjs', import.meta.url)), name];
}
