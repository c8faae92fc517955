"""The REST catalog that Iceberg tests its clients with, on this machine: names in SQLite, files in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from jobs.launch.jars import spark_home
from tests.scale.servers import ADDRESS
from tests.support.ports import free_port
from tests.support.published import Module, class_path

_ICEBERG, _VERSION = "org.apache.iceberg", "1.10.1"
_SERVLET = [Module(_ICEBERG, "iceberg-core", _VERSION, "tests")]
_NEEDED = [
    Module(_ICEBERG, "iceberg-core", _VERSION),
    Module("org.eclipse.jetty", "jetty-servlet", "11.0.26"),
    Module("org.xerial", "sqlite-jdbc", "3.50.3.0"),
]
_OF_SPARK = ("hadoop-client-*", "py4j-*", "commons-logging-*", "slf4j-api-*")


def fetched() -> list[Path]:
    servlet = class_path("iceberg-rest-servlet", _SERVLET)
    return [*servlet, *class_path("iceberg-rest", _NEEDED, transitive=True)]


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """Start the catalog in a JVM of its own, and yield its address."""
    jars = spark_home() / "jars"
    port, token, process = launch_gateway(
        jarpath=str(next(jars.glob("py4j-*.jar"))),
        classpath=":".join(map(str, [*fetched(), *(jar for name in _OF_SPARK for jar in jars.glob(f"{name}.jar"))])),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        javaopts=["-Xmx512m", "-XX:+UseSerialGC"],
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield f"http://{ADDRESS}:{_listening(gateway, folder)}"
    finally:
        gateway.close()
        process.kill()
        process.wait()
        process.stdin.close()


def _listening(gateway: JavaGateway, folder: Path) -> int:
    java, iceberg, jetty = gateway.jvm, gateway.jvm.org.apache.iceberg, gateway.jvm.org.eclipse.jetty
    settings = java.java.util.HashMap()
    settings["uri"] = f"jdbc:sqlite:{folder}/rest.db"
    settings["warehouse"] = str(folder / "warehouse")
    settings["jdbc.schema-version"] = "V1"
    catalog = iceberg.jdbc.JdbcCatalog()
    catalog.setConf(java.org.apache.hadoop.conf.Configuration())
    catalog.initialize("rest", settings)
    port = free_port()
    server = jetty.server.Server(java.java.net.InetSocketAddress(ADDRESS, port))
    context = jetty.servlet.ServletContextHandler()
    servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(catalog))
    context.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
    server.setHandler(context)
    server.start()
    return port
