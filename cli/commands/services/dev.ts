import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { Command, InvalidArgumentError } from '@commander-js/extra-typings';
import { allCopies } from '../../../store/index.ts';
import { choosePolicyPort, localRoles, policyUrlAt, readJoinedPool } from '../../../workers/stack/roles.ts';
import { startStack } from '../../../workers/stack/supervisor.ts';
import { loadRunConfig } from '../../../load/load-run-config.ts';
import { RatchetError } from '../../../core/errors.ts';
import { trainerGpusOf } from '../../../config/gpu-settings.ts';
import { vllmRole } from '../../../workers/stack/vllm-role.ts';
import { startClock } from '../../output/clock.ts';
import { connect, temporalOf } from '../../../workers/temporal/client.ts';
import { readGrace } from '../../typed/read-grace.ts';
import { reportRuns } from '../../temporal/report-runs.ts';
import { tellService } from '../../start/dev-service.ts';

export const devCommand = new Command('dev')
  .description('a Temporal server and all roles on this machine, supervised, until Ctrl-C')
  .option('--weights <folder...>', 'folders the policy server may load weights from', ['outputs'])
  .option('--gpu-workers <n>', 'GPU workers; each trains one run at a time', wholeNumber, 1)
  .option('--rollout-workers <n>', 'rollout workers, shared by all runs', wholeNumber, 1)
  .option('--pool <name>', 'the pool that they join: they work for the runs whose [queue] names it')
  .option('--label <name=value...>', 'labels of the GPU workers in the pool, such as gpu=h100')
  .option(
    '--metrics-port <port>',
    'where /metrics is served for Prometheus; default: 9464, or another if it is taken',
    port,
  )
  .option(
    '--serve <file>',
    'a run file whose [inference] kind = "vllm" is started, for all runs that want one; the policy server may load its teacher, where that is a folder',
  )
  .option('--no-page', 'without the page of the runs in ./outputs, which is served on this machine alone')
  .option('--grace <seconds>', 'how long a step under way has to finish when this is stopped', readGrace)
  .option(
    '--install-service',
    'write a service (systemd, launchd) that starts this at boot, so that runs continue by themselves',
  )
  .option('--uninstall-service', "remove this folder's service")
  .action(async (options) => {
    const { weights, gpuWorkers, rolloutWorkers, installService: installs, uninstallService: uninstalls } = options;
    const projectFolder = process.cwd();
    const joined = readJoinedPool(options.pool, options.label);
    if (installs || uninstalls) return tellService(projectFolder, options, installs === true);
    const clock = startClock();
    const served = options.serve === undefined ? null : (await loadRunConfig(options.serve, { projectFolder })).spec;
    // Weights of runs in S3 are copied here.
    const ownRoots = [...weights.map((folder) => path.resolve(projectFolder, folder)), allCopies()];
    for (const root of ownRoots) await mkdir(root, { recursive: true });
    const teacher = served?.teacher?.folder ?? null;
    const weightRoots = [...ownRoots, ...(teacher === null ? [] : [teacher])];
    const interrupted = new AbortController();
    const end = new Promise<void>((resolve) =>
      interrupted.signal.addEventListener('abort', () => resolve(), { once: true }),
    );
    process.on('SIGINT', () => interrupted.abort()).on('SIGTERM', () => interrupted.abort());

    const policyPort = await choosePolicyPort();
    const vllm = served && (await vllmRole(served, projectFolder));
    if (served && !vllm && teacher === null) throw nothingToServe(options.serve!);
    clock.say(
      `starting server, ${counted(gpuWorkers, 'GPU worker')}, ${counted(rolloutWorkers, 'rollout worker')}, policy server${vllm ? ', vLLM' : ''}`,
    );
    const stack = await startStack({
      projectFolder,
      policyUrl: policyUrlAt(policyPort),
      roles: localRoles({
        weightRoots,
        policyPort,
        vllm,
        trainerGpus: served && trainerGpusOf(served),
        metricsPort: options.metricsPort,
        count: { train: gpuWorkers, rollout: rolloutWorkers },
        graceS: options.grace,
        joined,
      }),
      graceMs: options.grace === undefined ? undefined : options.grace * 1000,
      log: clock.say,
      signal: interrupted.signal,
    }).catch((error: unknown) => {
      if (interrupted.signal.aborted) return null;
      throw error;
    });
    if (!stack) return;
    clock.say(
      `ready. Temporal ${stack.temporalAddress}${stack.uiUrl ? `, UI ${stack.uiUrl}` : ''}, policy server ${policyUrlAt(policyPort)}${vllm ? `, vLLM ${vllm.url}` : ''}`,
    );
    clock.say('start a run:  npx ratchet-rl train configs/rl/reverse-text.toml');
    clock.say(
      `or:           npx ratchet-rl temporal workflow start --type trainRun --task-queue ratchet --input '"configs/rl/reverse-text.toml"'`,
    );
    const page = options.page ? await openPage(projectFolder, clock.say) : null;
    const { client, close } = await connect(temporalOf(stack, stack.temporalAddress));
    const reporting = reportRuns(client, clock.say, interrupted.signal);
    await end;
    await close(); // requests under way then are not awaited
    await reporting;
    await page?.close();
    clock.say('stopping; runs continue when `ratchet dev` or `ratchet train` starts again here');
    await stack.stop();
  });

/** Loads the page's code only when it is wanted. */
async function openPage(
  projectFolder: string,
  say: (line: string) => void,
): Promise<{ readonly close: () => Promise<void> }> {
  const { openPageOfRuns } = await import('../../page/run-page.ts');
  return openPageOfRuns(projectFolder, say);
}

function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? '' : 's'}`;
}

function nothingToServe(file: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `--serve ${file}: expected [inference] kind = "vllm" without url, which is started here, or a [teacher] that is a folder of weights.`,
  );
}

/** Processes of one role on one machine. */
const processesMax = 64;

function port(text: string): number {
  const number = Number(text);
  if (Number.isInteger(number) && number >= 1 && number <= 65_535) return number;
  throw new InvalidArgumentError('Expected a port from 1 to 65535.');
}

function wholeNumber(text: string): number {
  const number = Number(text);
  if (Number.isInteger(number) && number >= 1 && number <= processesMax) return number;
  throw new InvalidArgumentError(`Expected a whole number from 1 to ${processesMax}.`);
}
