import { Command } from 'commander';
import { describeTinker, examineTinker } from '../../backends/configs/check-tinker.ts';
import { examineRunFile, type RunFileReport } from '../../backends/configs/examine-run-file.ts';
import type { Problem } from '../../core/spec/problems.ts';
import type { RunSpec } from '../../core/spec/run-spec.ts';
import { describeVllmStart } from '../../workers/vllm-role.ts';
import { readConfigLine } from '../config-line.ts';
import {
  examineReflection,
  examineServers,
  examineTeacher,
  type ServerReport,
} from '../../backends/inference/index.ts';
import { describeRunFile } from '../describe-run-file.ts';
import { describeReflection, describeServers, describeTeacher, vllmLacks } from '../describe-servers.ts';
import { otherKind } from '../other-kinds.ts';
import { toldWhenSlow } from '../told-when-slow.ts';

interface CheckOptions {
  readonly json?: boolean;
  readonly dialect?: string;
}

const afterHelp = `
For each file: what it was read as, everything that is wrong with it, with file, line and column; else what it is, what is read but not
yet honoured, what stands in the way of training it here, and advice from rules of thumb. Exit code 2 where anything is wrong.
Servers of [inference] kind = "openai" are asked, if they answer, what they have of what training needs: two tokens of each; a
[teacher], whether it has its model and does what it is there for, one token of it; the one that writes prompts anew for [gepa], what models
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
  .option('--json', 'as one JSON object: ok, files')
  .addHelpText('after', afterHelp)
  .allowUnknownOption()
  .action(async (typed: string[], options: CheckOptions) => {
    const first = typed.findIndex((word, i) => word.startsWith('--') || (word === '@' && i > 0));
    const files = (first === -1 ? typed : typed.slice(0, first)).filter((word) => word !== '@');
    const settings = first === -1 ? [] : typed.slice(first);
    const dialect = options.dialect === undefined ? {} : { dialect: options.dialect };
    const reports: Report[] = [];
    const runs =
      files.length === 0 ? [readConfigLine(settings)] : files.map((file) => readConfigLine([file, ...settings]));
    for (const { file, over, overrides } of runs) {
      const load = { projectFolder: process.cwd(), over, overrides, ...dialect };
      reports.push((await otherKind(file, load)) ?? (await reportOf(await examineRunFile(file, load, toldWhenSlow))));
    }
    const isOk = reports.every(({ problems }) => problems.length === 0);
    const text = options.json
      ? JSON.stringify({ ok: isOk, files: reports.map(({ json }) => json) }, null, 2)
      : reports.map(({ lines }) => lines.join('\n')).join('\n\n');
    process.stdout.write(`${text}\n`);
    if (!isOk) process.exitCode = 2;
  });

interface Report {
  readonly problems: readonly Problem[];
  readonly lines: readonly string[];
  readonly json: object;
}

async function reportOf(report: RunFileReport): Promise<Report> {
  const { loaded, problems } = report;
  const servers = loaded === null ? [] : await examineServers(loaded.spec.inference);
  const start = loaded === null ? null : await describeVllmStart(loaded.spec, process.cwd());
  const tinker = loaded === null ? null : await examineTinker(loaded.spec, report.file);
  const teacher = loaded === null ? [] : await examineTeacher(loaded.spec);
  const reflection = loaded?.spec.gepa ? await examineReflection(loaded.spec.gepa) : null;
  return {
    problems: [...problems, ...(tinker?.problems ?? []), ...(loaded ? serverProblems(loaded.spec, servers) : [])],
    lines: [
      ...describeRunFile(report),
      ...(loaded ? describeServers(loaded.spec, servers) : []),
      ...(start === null ? [] : ['vLLM is started with the run:', `  ${start}`]),
      ...(tinker ? describeTinker(tinker) : []),
      ...describeTeacher(teacher),
      ...(reflection ? describeReflection(reflection) : []),
    ],
    json: { kind: 'run', ...asJson(report, servers), tinker, teacher, reflection },
  };
}

/** A vLLM that runs and cannot take the run's weights; that is said beside what it has. */
function serverProblems({ inference }: RunSpec, servers: readonly ServerReport[]): Problem[] {
  if (inference.kind !== 'vllm') return [];
  return servers.flatMap((server) =>
    vllmLacks(inference.vllm, server).map((expected) => ({
      file: server.url,
      line: null,
      column: null,
      path: 'inference.url',
      expected,
      received: 'a server that was started without',
    })),
  );
}

function asJson({ loaded, model, environments, ...report }: RunFileReport, servers: readonly ServerReport[]): object {
  const named = [...(loaded?.spec.environments ?? []), ...(loaded?.spec.eval?.environments ?? [])];
  const packages = named.flatMap(({ name, python }) => (python === undefined ? [] : [name]));
  return {
    ...report,
    ok: report.problems.length === 0,
    environmentsHere: [...new Set([...environments.keys(), ...packages])],
    model,
    servers,
    spec: loaded?.spec ?? null,
  };
}
