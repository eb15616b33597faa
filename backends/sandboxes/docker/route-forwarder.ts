/** A program for images, in a language that they may have: leads a port of the loopback to a Unix socket, and says "ready". */

const python = `
import socket, sys, threading
def pour(a, b):
    try:
        while True:
            part = a.recv(65536)
            if not part: break
            b.sendall(part)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (a, b): end.close()
def lead(inner):
    outer = socket.socket(socket.AF_UNIX)
    try: outer.connect(sys.argv[1])
    except OSError: return inner.close()
    threading.Thread(target=pour, args=(outer, inner), daemon=True).start()
    pour(inner, outer)
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=64)
print("ready", flush=True)
while True:
    threading.Thread(target=lead, args=(listener.accept()[0],), daemon=True).start()
`;

const node = `
const net = require('net');
const [socket, port] = process.argv.slice(1);
net.createServer({ allowHalfOpen: true }, (inner) => {
  const outer = net.connect({ path: socket, allowHalfOpen: true });
  for (const end of [inner, outer]) end.on('error', () => { inner.destroy(); outer.destroy(); });
  inner.pipe(outer).pipe(inner);
}).listen(Number(port), '127.0.0.1', () => console.log('ready'));
`;

const perl = `
use IO::Socket::INET; use IO::Socket::UNIX;
my ($path, $port) = @ARGV; $SIG{CHLD} = 'IGNORE';
my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 64, ReuseAddr => 1) or die $!;
$| = 1; print "ready\\n";
sub pour { my ($a, $b) = @_; my $part; while (sysread($a, $part, 65536)) { my $at = 0; while ($at < length $part) { my $n = syswrite($b, $part, 65536, $at) or return; $at += $n } } shutdown($b, 1) }
while (my $inner = $listener->accept) {
  next if fork; my $outer = IO::Socket::UNIX->new(Peer => $path) or exit; if (fork) { pour($inner, $outer); wait } else { pour($outer, $inner) } exit;
}
`;

/** The command, by the first language that the image has. */
export function forwarding(socket: string, port: number): readonly string[] {
  const choose =
    'if command -v python3 >/dev/null; then exec python3 -c "$1" "$4" "$5"; elif command -v node >/dev/null; then exec node -e "$2" "$4" "$5"; ' +
    'elif command -v perl >/dev/null; then exec perl -e "$3" "$4" "$5"; else echo "none of them is there" >&2; exit 1; fi';
  return ['sh', '-c', choose, 'sh', python, node, perl, socket, String(port)];
}
