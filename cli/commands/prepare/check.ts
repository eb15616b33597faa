import { Command } from '@commander-js/extra-typings';
import { describeTinker, examineTinker } from '../../../load/checks/check-tinker.ts';
import { examineRunFile, type RunFileReport } from '../../../load/checks/examine-run-file.ts';
import { readRunFile } from '../../../load/load-run-config.ts';
import { ConfigProblems, type Problem } from '../../../config/toml/problems.ts';
import { describeVllmStart, programOf } from '../../../workers/stack/vllm-role.ts';
import { chooseSampler, withSampler } from '../../start/choose-sampler.ts';
import { lookAtMachine } from '../../start/engine-lacks.ts';
import { readConfigLine } from '../../typed/config-line.ts';
import {
  examineReflection,
  examineServers,
  examineTeacher,
  type ServerReport,
} from '../../../backends/inference/index.ts';
import { describeRunFile } from '../../describe/run-file.ts';
import { describeReflection, describeServers, describeTeacher, serverProblems } from '../../describe/servers.ts';
import { print, printJson } from '../../output/print.ts';
import { otherKind } from '../../start/other-kinds.ts';
import { toldWhenSlow } from '../../output/told-when-slow.ts';

const afterHelp = `
For each file: what it was read as, everything that is wrong with it, with file, line and column; else what it is, what of it has no
effect here, what prevents training it here, and advice from rules of thumb. Exit code 2 where anything in a
file is wrong, 1 where the files are right and something is in the way of training here, 0 where they can be trained.
Servers of [inference] kind = "openai" are asked, if they answer, what they have of what training needs: two tokens of each; a
[teacher], whether it has its model and answers as needed, one token of it; the one that rewrites prompts for [gepa], what models
it has.
`;

export const checkCommand = new Command('check')
  .description('say everything that is wrong with run files, and what they will do; starts nothing, changes nothing')
  .usage('[options] <files...> [overrides...]')
  .argument(
    '<files...>',
    'run files (TOML), then any setting of theirs: --max-steps 5, and files that are laid over each: @ FILE',
  )
  .option('--dialect <name>', 'whose words they are written in; default: what their keys show')
  .option(
    '--import',
    'run what the files name: environments of your own, an own vLLM. Without it their code is not run, and the output names what was not checked',
  )
  .option('--json', 'as one JSON object: ok, files')
  .addHelpText('after', afterHelp)
  .allowUnknownOption()
  .action(async (typed, options) => {
    const first = typed.findIndex((word, i) => word.startsWith('--') || (word === '@' && i > 0));
    const files = (first === -1 ? typed : typed.slice(0, first)).filter((word) => word !== '@');
    const settings = first === -1 ? [] : typed.slice(first);
    const dialect = options.dialect === undefined ? {} : { dialect: options.dialect };
    const imports = options.import === true;
    const reports: Report[] = [];
    const runs =
      files.length === 0 ? [readConfigLine(settings)] : files.map((file) => readConfigLine([file, ...settings]));
    for (const { file, over, overrides } of runs) {
      const load = { projectFolder: process.cwd(), over, overrides, ...dialect };
      const read = await readRunFile(file, load).catch(toldLater);
      const other = read && otherKind(read, load);
      if (other !== null) {
        reports.push(other);
        continue;
      }
      const asked = { ...load, ...(read && { read }) };
      const sampler = await chooseSampler(file, asked);
      const examined = { ...asked, overrides: sampler.overrides, looked: sampler.looked, imports };
      const report = await examineRunFile(file, examined, toldWhenSlow);
      reports.push(await reportOf(withSampler(report, sampler), imports));
    }
    const isOk = reports.every(({ problems }) => problems.length === 0);
    const trainsHere = reports.every(({ obstacles = 0 }) => obstacles === 0);
    if (options.json) printJson({ ok: isOk, files: reports.map(({ json }) => json) }, 2);
    else print(reports.map(({ lines }) => lines.join('\n')).join('\n\n'));
    if (!isOk) process.exitCode = 2;
    else if (!trainsHere) process.exitCode = 1;
  });

/** Problems with the file are reported later, together with those of other files. */
function toldLater(error: unknown): null {
  if (error instanceof ConfigProblems) return null;
  throw error;
}

interface Report {
  readonly problems: readonly Problem[];
  /** Number of obstacles to training on this machine. */
  readonly obstacles?: number;
  readonly lines: readonly string[];
  readonly json: object;
}

async function reportOf(examined: RunFileReport, imports: boolean): Promise<Report> {
  const { loaded, problems } = examined;
  const machine = loaded && (await lookAtMachine(loaded));
  const report = { ...examined, obstacles: [...examined.obstacles, ...(machine?.obstacles ?? [])] };
  const servers = loaded === null ? [] : await examineServers(loaded.spec.inference);
  const program = loaded === null || imports ? null : programOf(loaded.spec);
  const start =
    program === null
      ? loaded && (await describeVllmStart(loaded.spec, process.cwd()))
      : `by ${program}, which the file names and which was not asked whether it is vLLM: --import does`;
  const tinker = loaded === null ? null : await examineTinker(loaded.spec, report.file);
  const teacher = loaded === null ? [] : await examineTeacher(loaded.spec);
  const reflection = loaded?.spec.gepa ? await examineReflection(loaded.spec.gepa) : null;
  return {
    problems: [...problems, ...(tinker?.problems ?? []), ...(loaded ? serverProblems(loaded.spec, servers) : [])],
    obstacles: report.obstacles.length,
    lines: [
      ...describeRunFile(report),
      ...(machine?.gpus.lines ?? []),
      ...(loaded ? describeServers(loaded.spec, servers) : []),
      ...(start === null ? [] : ['vLLM is started with the run:', `  ${start}`]),
      ...(tinker ? describeTinker(tinker) : []),
      ...describeTeacher(teacher),
      ...(reflection ? describeReflection(reflection) : []),
    ],
    json: {
      kind: 'run',
      ...asJson(report, servers),
      gpuMemory: machine?.gpus.memory ?? null,
      tinker,
      teacher,
      reflection,
    },
  };
}

function asJson({ loaded, model, environments, ...report }: RunFileReport, servers: readonly ServerReport[]): object {
  const named = [...(loaded?.spec.environments ?? []), ...(loaded?.spec.eval?.environments ?? [])];
  const packages = named.flatMap(({ name, python }) => (python === undefined ? [] : [name]));
  const left = report.notImported.map(({ name }) => name);
  return {
    ...report,
    ok: report.problems.length === 0,
    environmentsHere: [...new Set([...environments.keys(), ...packages, ...left])],
    model,
    servers,
    spec: loaded?.spec ?? null,
  };
}
