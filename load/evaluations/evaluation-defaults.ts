import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { parseToml } from '../../config/toml/parse-toml.ts';
import type { PythonEnvironmentSpec } from '../../config/run-spec.ts';
import { readRegularText } from '../../host/regular-file.ts';

/** Evaluation settings in an environment's package; null where it has none. */
interface EvaluationDefaults {
  readonly numExamples: number | null;
  readonly rolloutsPerExample: number | null;
}

const nothingSaid: EvaluationDefaults = { numExamples: null, rolloutsPerExample: null };

const EvalTable = z.object({
  tool: z.object({
    verifiers: z.object({
      eval: z.object({
        num_examples: z.int().optional().catch(undefined),
        rollouts_per_example: z.int().positive().optional().catch(undefined),
      }),
    }),
  }),
});

/** `[tool.verifiers.eval]` of the package's pyproject.toml: beside its source, or in its installed module. */
export async function evaluationDefaultsOf(python: PythonEnvironmentSpec | undefined): Promise<EvaluationDefaults> {
  if (python === undefined) return nothingSaid;
  for (const file of await pyprojectsOf(python)) {
    const text = await readRegularText(file).catch(() => null); // optional: most packages have no such file
    if (text === null) continue;
    const { table } = parseToml(text, file);
    const said = EvalTable.safeParse(table);
    if (!said.success) return nothingSaid;
    const { num_examples: numExamples = null, rollouts_per_example: rolloutsPerExample = null } =
      said.data.tool.verifiers.eval;
    return { numExamples, rolloutsPerExample };
  }
  return nothingSaid;
}

async function pyprojectsOf({ source, folder, module }: PythonEnvironmentSpec): Promise<string[]> {
  const versions = await readdir(path.join(folder, 'lib')).catch(() => []);
  const installed = versions.map((version) => path.join(folder, 'lib', version, 'site-packages', module));
  return [...(source === undefined ? [] : [source]), ...installed].map((place) => path.join(place, 'pyproject.toml'));
}
