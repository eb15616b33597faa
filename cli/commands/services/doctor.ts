import os from 'node:os';
import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { sandboxIsWanted } from '../../../backends/environments/python/sandbox.ts';
import { localRoot } from '../../../store/index.ts';
import {
  type Check,
  checkDisk,
  checkFolder,
  checkGpu,
  checkKeys,
  checkMemory,
  checkNode,
  checkOpenFiles,
  checkPython,
  checkSandbox,
  checkTemporalCli,
} from '../../doctor/machine.ts';
import { checkEngines, checkTrainerProgram } from '../../doctor/engines.ts';
import { checkRunFile, checkTemporalServer } from '../../doctor/services.ts';
import { needsCuda } from '../../start/engine-lacks.ts';
import { type ConfigLine, readConfigLine } from '../../typed/config-line.ts';
import { print } from '../../output/print.ts';

export const doctorCommand = new Command('doctor')
  .description(
    'look at what runs need on this machine, one line each with the fix; exit code 1 when something needed is broken',
  )
  .argument('[file]', 'run file: checks what that run needs as well')
  .argument('[overrides...]', 'any setting of the file: --store.uri s3://…, and files that are laid over it: @ FILE')
  .option('--dialect <name>', 'whose words it is written in; default: what its keys show')
  .option(
    '--import',
    'load environments that the file names as files or Python packages, and ask its own vLLM; without it nothing of the file is run',
  )
  .option('--json', 'as one JSON object')
  .allowUnknownOption()
  .action(async (file, rest, options) => {
    const { dialect, import: imports = false } = options;
    const checks = await allChecks(file === undefined ? null : readConfigLine([file, ...rest]), dialect, imports);
    const isFit = checks.every(({ state }) => state !== 'bad');
    const lines = options.json ? [JSON.stringify({ isFit, checks }, null, 2)] : [...describe(checks), verdict(checks)];
    print(lines.join('\n'));
    if (!isFit) process.exitCode = 1;
  });

async function allChecks(line: ConfigLine | null, dialect: string | undefined, imports: boolean): Promise<Check[]> {
  const { spec, checks: ofFile } =
    line === null ? { spec: null, checks: [] } : await checkRunFile(line, dialect, imports);
  const needs = {
    cuda: spec !== null && needsCuda(spec),
    trainsByTorch: spec?.trainer.kind === 'torch',
    torchProgram: spec?.trainer.kind === 'torch' ? spec.trainer.program : null,
    sandbox: sandboxIsWanted(),
  };
  const outputs = spec ? localRoot(spec.store.uri) : path.resolve('outputs');
  const outOfFile = await Promise.all([
    checkTemporalCli(),
    checkTemporalServer(process.cwd()),
    checkPython(),
    checkDisk({ runs: outputs, temporary: os.tmpdir() }),
    spec ? [] : checkFolder(outputs),
    checkGpu(needs),
    checkEngines(needs),
    checkSandbox(needs),
    spec ? checkTrainerProgram(spec) : [],
  ]);
  return [checkNode(), checkMemory(), checkOpenFiles(), ...outOfFile.flat(), checkKeys(), ...ofFile];
}

const marks = { ok: '✓', warn: '!', bad: '✗' } as const;

function describe(checks: readonly Check[]): string[] {
  const width = Math.max(...checks.map(({ name }) => name.length));
  return checks.flatMap(({ name, state, says, fix }) => [
    `${marks[state]} ${name.padEnd(width)}  ${says.replaceAll('\n', `\n${' '.repeat(width + 4)}`)}`,
    ...(fix === undefined || state === 'ok' ? [] : [`${' '.repeat(width + 4)}→ ${fix}`]),
  ]);
}

function verdict(checks: readonly Check[]): string {
  const count = (state: Check['state']): number => checks.filter((check) => check.state === state).length;
  if (count('bad') > 0) return `${count('bad')} of ${checks.length} need to be mended`;
  return count('warn') === 0 ? 'all is well' : `nothing that is needed is missing; ${count('warn')} to know of`;
}
