import { z } from 'zod';
import { isSameName, verifiersRequirement } from './requirement.ts';

/** Packages that pip would install, from `pip install --dry-run --report`. */
const Report = z.object({
  install: z.array(
    z.object({ metadata: z.object({ name: z.string(), requires_dist: z.array(z.string()).default([]) }) }),
  ),
});

/** Combined requirement on verifiers of all packages in a resolution; null if verifiers is not among them. */
export function verifiersOfResolution(report: string, python: string): string | null {
  const { install } = Report.parse(JSON.parse(report));
  if (!install.some(({ metadata }) => isSameName(metadata.name, 'verifiers'))) return null;
  return install
    .map(({ metadata }) => verifiersRequirement(metadata.requires_dist, { name: metadata.name, python }) ?? '')
    .filter((specifier) => specifier !== '')
    .join(',');
}
