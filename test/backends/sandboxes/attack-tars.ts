import { entry } from '../../stand-ins/tinker/tar.ts';

/** Saved folders that somebody made to write outside of their root, or to take more than they may. */
export function attackTars(): readonly (readonly [string, Buffer])[] {
  const file = (name: string): Buffer[] => entry(name, Buffer.from('harm'));
  const pointing = (name: string, target: string, type: '1' | '2'): Buffer[] => {
    const [header, ...rest] = entry(name, Buffer.alloc(0), type) as [Buffer, ...Buffer[]];
    return [withTarget(header, target), ...rest];
  };
  const whole = (...parts: readonly Buffer[][]): Buffer => Buffer.concat([...parts.flat(), Buffer.alloc(1024)]);
  return [
    ['an absolute name', whole(file('/tmp/harm'))],
    ['a name that leads out', whole(file('a/../../harm'))],
    ['a file through a link', whole(pointing('out', '/tmp', '2'), file('out/harm'))],
    ['a file through a link by other words', whole(pointing('a/out', '/tmp', '2'), file('a/.//out/harm'))],
    ['a file in the place of a link', whole(pointing('out', '/tmp/harm', '2'), file('out'))],
    ['a folder in the place of a link', whole(pointing('out', '/tmp', '2'), entry('out', Buffer.alloc(0), '5'))],
    ['a link in the place of a folder', whole(file('a/b'), pointing('a', '/tmp', '2'))],
    ['a second name of a file outside', whole(pointing('x', '/etc/passwd', '1'))],
    ['a second name of a file above', whole(pointing('x', '../x', '1'))],
    ['a second name of a link', whole(pointing('out', '/etc/passwd', '2'), pointing('x', 'out', '1'))],
    ['a second name of a later file', whole(pointing('x', 'y', '1'), file('y'))],
    ['a device', whole(entry('dev', Buffer.alloc(0), '3'))],
    ['a name twice', whole(file('x'), file('./x'))],
    ['more bytes than the disk has', whole(entry('x', Buffer.alloc(65 * 2 ** 20)))],
    [
      'a name of many folders',
      whole([...entry('././@LongLink', Buffer.from(`${'a/'.repeat(4_000)}x\0`), 'L'), ...file('x')]),
    ],
    ['no tar', Buffer.from('<html>'.repeat(500))],
    ['an archive that is cut off', Buffer.concat(file('x')).subarray(0, 700)],
  ];
}

function withTarget(header: Buffer, target: string): Buffer {
  header.write(target, 157);
  header.write('        ', 148);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return header;
}
