import { RatchetError } from '../../core/errors.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { checkModel, modelRemedy } from '../../load/checks/check-model.ts';
import { examineTinker } from '../../load/checks/check-tinker.ts';
import { runsOfFile } from '../../load/checks/examine-run-file.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { examineServers, lookAtServer, type ServerAddress, serversOf } from '../../backends/inference/index.ts';
import { checkStore, localRoot, showStoreUri } from '../../store/index.ts';
import { programOf, vllmCommandLine } from '../../workers/stack/vllm-role.ts';
import { otherTemperatures, vllmLacks } from '../describe/servers.ts';
import { readRunningStack } from '../../workers/stack/project-lock.ts';
import { connect, findTemporal } from '../../workers/temporal/client.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import {
  commandForSearchAttributes,
  lackOfSearchAttributes,
  missingSearchAttributes,
} from '../../workers/temporal/search-attributes.ts';
import { type Check, checkFolder, clockCheck } from './machine.ts';
import type { ConfigLine } from '../typed/config-line.ts';

/** Server of TEMPORAL_ADDRESS, or of this folder's stack; none is fine, since `ratchet train` starts one. */
export async function checkTemporalServer(projectFolder: string): Promise<Check[]> {
  const name = 'Temporal';
  const isElsewhere = (process.env['TEMPORAL_ADDRESS'] ?? '') !== '';
  if (!isElsewhere && (await readRunningStack(projectFolder)) === null) {
    return [{ name, state: 'ok', says: 'nothing runs in this folder; ratchet train and ratchet dev start a server' }];
  }
  try {
    const settings = await findTemporal(projectFolder);
    const { client, close } = await connect(settings);
    try {
      const { namespace } = settings;
      const { serverVersion } = await client.workflowService.getSystemInfo({});
      await client.workflowService.describeNamespace({ namespace });
      const missing = await missingSearchAttributes({
        list: async () =>
          (await client.connection.operatorService.listSearchAttributes({ namespace })).customAttributes,
        count: (query) => client.workflow.count(query),
      });
      const server: Check = {
        name,
        state: 'ok',
        says: `${settings.address}, namespace ${namespace}, server ${serverVersion}`,
      };
      if (missing === null) return [server];
      return [
        server,
        {
          name: 'search attributes',
          state: 'warn',
          says: lackOfSearchAttributes(settings, missing),
          fix: `the administrator of the namespace: ${commandForSearchAttributes(settings, missing)}`,
        },
      ];
    } finally {
      await close();
    }
  } catch (error) {
    const says = rootMessage(error).split('\n')[0]!;
    const fix = isElsewhere
      ? 'check TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE and the TLS settings'
      : 'wait until it is ready, or stop it and start ratchet dev again';
    return [{ name, state: 'bad', says, fix }];
  }
}

/** Checks requirements of a run file beyond the machine. `spec` is null when the file cannot be read. */
export async function checkRunFile(
  { file, over, overrides }: ConfigLine,
  dialect: string | undefined,
  imports: boolean,
): Promise<{ spec: RunSpec | null; checks: Check[] }> {
  const checks: Check[] = [];
  const name = 'run file';
  let spec: RunSpec;
  try {
    const loaded = await loadRunConfig(file, {
      projectFolder: process.cwd(),
      over,
      overrides,
      ...(dialect === undefined ? {} : { dialect }),
    });
    ({ spec } = loaded);
    checks.push({ name, state: 'ok', says: `${file}: ${spec.name}, ${spec.maxSteps} steps` });
    for (const warning of loaded.warnings) checks.push({ name, state: 'warn', says: warning, fix: 'see the message' });
  } catch (error) {
    return { spec: null, checks: [bad(name, error, `npx ratchet-rl check ${file} says all of it`)] };
  }
  checks.push(await tried('model', spec.model, () => checkModel(spec), modelRemedy(spec)));
  for (const entry of [...spec.environments, ...(spec.eval?.environments ?? [])]) {
    const runs = imports ? null : runsOfFile(entry);
    if (runs !== null) {
      const says = `${entry.name}: not loaded, and its needs on this machine not checked: loading would run ${runs}, which the file names`;
      checks.push({
        name: 'environment',
        state: 'warn',
        says,
        fix: 'read that file first, then type the same command with --import',
      });
      continue;
    }
    const open = async (): Promise<void> => void (await openEnvironment(entry)).dataset.length;
    checks.push(
      await tried(
        'environment',
        entry.name,
        open,
        'npx ratchet-rl check says what it found; paths are relative to this folder',
      ),
    );
  }
  checks.push(...(await checkStoreOf(spec)));
  checks.push(...(await checkServers(spec)), ...(await checkTinker(spec, file)), ...(await checkVllm(spec, imports)));
  return { spec, checks };
}

async function checkStoreOf({ store }: RunSpec): Promise<Check[]> {
  if (store.uri.startsWith('file:')) return checkFolder(localRoot(store.uri));
  const fix =
    'see the message; docs/guide/several-machines.md, "The store", has the rights that are needed. Credentials come from the usual AWS chain';
  const conditions = await tried(
    'S3 conditions',
    `${showStoreUri(store.uri)} keeps to If-None-Match and If-Match`,
    () => checkStore(store.uri),
    fix,
  );
  const endpoint = new URLSearchParams(store.uri.split('?')[1] ?? '').get('endpoint') ?? 'https://s3.amazonaws.com';
  return [conditions, ...(await checkClockOf(endpoint))];
}

/** Uses the Date header of any answer, whatever its status; half the round trip is small beside a second. */
async function checkClockOf(url: string): Promise<Check[]> {
  try {
    const { headers } = await fetch(url, { method: 'HEAD', redirect: 'manual', signal: AbortSignal.timeout(10_000) });
    const date = Date.parse(headers.get('date') ?? '');
    return Number.isNaN(date) ? [] : [clockCheck('clock (S3)', Math.trunc((date - Date.now()) / 1000))];
  } catch {
    return []; // already reported as not answering
  }
}

/** Servers that the file names; those that `ratchet dev` starts need no check. */
async function checkServers({ inference }: RunSpec): Promise<Check[]> {
  if (!('endpoints' in inference) || (inference.url === null && inference.endpoints === null)) return [];
  const name = 'inference server';
  const fix = 'start it, or correct [inference]';
  let addresses: ServerAddress[];
  try {
    addresses = serversOf(inference, '');
  } catch (error) {
    return [bad(name, error, fix)];
  }
  return Promise.all(addresses.map(async (address) => tried(name, address.url, () => lookAtServer(address), fix)));
}

/** Checks that a Tinker server has what the run needs. */
async function checkTinker(spec: RunSpec, file: string): Promise<Check[]> {
  const report = await examineTinker(spec, file);
  if (report === null) return [];
  const { url, away, models, problems } = report;
  const name = 'Tinker server';
  const fix = 'start it, set its key, or correct [trainer]; docs/guide/tinker.md says how';
  if (away !== null) return [{ name, state: 'bad', says: away, fix }];
  const wrong = problems.map(({ path: key, expected, received }): Check => ({
    name,
    state: 'bad',
    says: `${key}: expected ${expected}, got ${received}`,
    fix: 'correct [trainer]',
  }));
  return wrong.length > 0 ? wrong : [{ name, state: 'ok', says: `${url} has ${models.join(', ')}` }];
}

/** The vLLM that would be started, or what running servers lack for the run. */
async function checkVllm(spec: RunSpec, imports: boolean): Promise<Check[]> {
  const { inference } = spec;
  if (!('vllm' in inference)) return [];
  const name = 'vLLM';
  const program = imports ? null : programOf(spec);
  if (program !== null) {
    const says = `${program}, which the file names, was not asked whether it is vLLM`;
    return [{ name, state: 'warn', says, fix: 'the same command with --import asks it' }];
  }
  try {
    const line = await vllmCommandLine(spec, process.cwd());
    if (line !== null)
      return [{ name, state: 'ok', says: 'is started with the run; ratchet check prints its command' }];
  } catch (error) {
    return [bad(name, error, 'as it says; docs/guide/vllm.md has the installation')];
  }
  const [other] = otherTemperatures(spec);
  const reports = (await examineServers(inference)).filter(({ away }) => away === null);
  return reports.flatMap((report): Check[] => {
    const lacks = vllmLacks(inference.vllm, report);
    if (report.logprobsAreRaw === true && other !== undefined) {
      lacks.push(`its log probabilities are not those at temperature ${other}: --logprobs-mode processed_logprobs`);
    }
    return lacks.map((says) => ({ name, state: 'bad', says: `${report.url}: ${says}`, fix: 'start it anew so' }));
  });
}

async function tried(name: string, says: string, work: () => Promise<unknown>, fix: string): Promise<Check> {
  try {
    await work();
    return { name, state: 'ok', says };
  } catch (error) {
    return bad(name, error, fix);
  }
}

function bad(name: string, error: unknown, fix: string): Check {
  const says = error instanceof RatchetError ? error.message : rootMessage(error);
  return { name, state: 'bad', says, fix };
}
